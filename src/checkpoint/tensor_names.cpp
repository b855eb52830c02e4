#include "spillway/checkpoint/tensor_names.h"

#include <array>

#include "spillway/core/error.h"
#include "spillway/model/decoder.h"

namespace spillway::checkpoint {
namespace {

using model::QkNorm;

bool ends_with(std::string_view text, std::string_view end) { return text.ends_with(end); }

std::string without_end(const std::string& text, std::string_view end) {
  return text.substr(0, text.size() - end.size());
}

// What the projections of an expert are called.
struct ExpertNames {
  std::string_view gate, up, down;
};

ExpertNames expert_names(Family family) {
  if (family == Family::kMixtral) return {.gate = "w1", .up = "w3", .down = "w2"};
  return {.gate = "gate_proj", .up = "up_proj", .down = "down_proj"};
}

// "model.layers.3.mlp.": Mixtral's files call the feed-forward part otherwise.
std::string family_prefix(std::string prefix, Family family) {
  constexpr std::string_view kOurs = ".mlp.";
  const size_t place = prefix.find(kOurs);
  if (family == Family::kMixtral && place != std::string::npos) {
    prefix.replace(place, kOurs.size(), ".block_sparse_moe.");
  }
  return prefix;
}

void append_experts(const nn::ParameterSpec& spec, Family family, std::vector<FileTensor>& out) {
  constexpr std::string_view kGateUp = "gate_up_proj", kDown = "down_proj";
  const bool gate_up = ends_with(spec.name, kGateUp);
  const ExpertNames names = expert_names(family);
  const std::string prefix =
      family_prefix(without_end(spec.name, gate_up ? kGateUp : kDown), family);
  const int64_t rows = gate_up ? spec.shape[1] / 2 : spec.shape[1];
  const Shape shape{rows, spec.shape[2]};
  int64_t begin = 0;
  const auto append = [&](int64_t expert, std::string_view name) {
    out.push_back({.name = str(prefix, expert, ".", name, ".weight"),
                   .parameter = spec.name,
                   .begin = begin,
                   .shape = shape,
                   .expert = expert});
    begin += shape.numel();
  };
  for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
    append(expert, gate_up ? names.gate : names.down);
    if (gate_up) append(expert, names.up);
  }
}

// A dense SwiGLU network: the gate's rows first, then those of the other half.
void append_gate_up(const nn::ParameterSpec& spec, std::vector<FileTensor>& out) {
  const std::string prefix = without_end(spec.name, "gate_up_proj.weight");
  const Shape shape{spec.shape[0] / 2, spec.shape[1]};
  int64_t begin = 0;
  for (const char* const name : {"gate_proj.weight", "up_proj.weight"}) {
    out.push_back({.name = prefix + name, .parameter = spec.name, .begin = begin, .shape = shape});
    begin += shape.numel();
  }
}

}  // namespace

Family family_of(const model::DecoderConfig& config) {
  const moe::MoeConfig& moe = config.moe;
  const moe::RouterConfig& router = moe.router;
  const QkNorm norm = config.model.qk_norm;
  const bool plain_router = router.score == moe::ScoreFunction::kSoftmax && router.groups <= 1 &&
                            router.bias_update_rate == 0.0;
  // Of the other families only Qwen3-MoE has dense layers.
  const bool dense_layers = config.model.first_dense_layers > 0 && norm != QkNorm::kHead;
  if (moe.experts == 0 || moe.shared_experts > 0 || !plain_router || dense_layers) {
    return Family::kDeepseek;
  }
  if (norm == QkNorm::kHead) return Family::kQwen3Moe;
  return norm == QkNorm::kFull ? Family::kOlmoe : Family::kMixtral;
}

std::string_view family_name(Family family) {
  constexpr std::array<std::string_view, 4> kNames{"qwen3_moe", "olmoe", "mixtral", "deepseek_v3"};
  return kNames[static_cast<size_t>(family)];
}

std::vector<FileTensor> file_tensors(const model::DecoderConfig& config, Family family) {
  std::vector<FileTensor> tensors;
  for (const nn::ParameterSpec& spec : model::parameter_specs(config, DType::kF32)) {
    if (spec.sync == nn::SyncGroup::kExpert) {
      append_experts(spec, family, tensors);
    } else if (ends_with(spec.name, ".gate_up_proj.weight")) {
      append_gate_up(spec, tensors);
    } else {
      const bool router = ends_with(spec.name, ".mlp.gate.weight");
      tensors.push_back({.name = router ? family_prefix(spec.name, family) : spec.name,
                         .parameter = spec.name,
                         .shape = spec.shape});
    }
  }
  return tensors;
}

std::vector<FileTensor> fused_tensors(const model::DecoderConfig& config) {
  std::vector<FileTensor> tensors;
  for (const nn::ParameterSpec& spec : model::parameter_specs(config, DType::kF32)) {
    tensors.push_back({.name = spec.name, .parameter = spec.name, .shape = spec.shape});
  }
  return tensors;
}

}  // namespace spillway::checkpoint
