#pragma once
// What the tests of checkpoints share: small models of every family, and a rank's part of one whose
// every element is a known function of its place in the whole model.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "spillway/checkpoint/checkpoint.h"
#include "spillway/core/rng.h"
#include "spillway/model/decoder.h"

namespace spillway::checkpoint {

/// hidden 8, 2 layers, 4 experts of width 6; no two sizes of a fused expert are equal.
inline model::DecoderConfig small_config(model::QkNorm qk_norm) {
  model::DecoderConfig config;
  config.model = {.vocab_size = 11,
                  .hidden = 8,
                  .layers = 2,
                  .heads = 2,
                  .kv_heads = 1,
                  .max_seq = 16,
                  .qk_norm = qk_norm,
                  .dense_ffn = 10};
  config.moe.experts = 4;
  config.moe.top_k = 2;
  config.moe.ffn = 6;
  return config;
}

struct ModelCase {
  std::string name;
  model::DecoderConfig config;
  bool bias = false;  ///< has buffers
};
inline void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }

inline ModelCase qwen_case() { return {"qwen3_moe", small_config(model::QkNorm::kHead)}; }
inline ModelCase olmoe_case() { return {"olmoe", small_config(model::QkNorm::kFull)}; }
inline ModelCase mixtral_case() { return {"mixtral", small_config(model::QkNorm::kNone)}; }
/// A dense layer, shared experts, a selection bias.
inline ModelCase deepseek_case() {
  ModelCase c{"deepseek", small_config(model::QkNorm::kNone), true};
  c.config.model.first_dense_layers = 1;
  c.config.moe.shared_experts = 2;
  c.config.moe.router.score = moe::ScoreFunction::kSigmoid;
  c.config.moe.router.bias_update_rate = 0.001;
  return c;
}
inline std::vector<ModelCase> model_cases() {
  return {qwen_case(), olmoe_case(), mixtral_case(), deepseek_case()};
}

/// The float at an element of a field ("value", "m", "v", "bias") of the whole model.
inline float element_at(std::string_view name, std::string_view field, int64_t index, int salt) {
  uint64_t hash = static_cast<uint64_t>(salt);
  for (const char c : str(name, "/", field)) hash = mix64(hash * 31 + static_cast<uint8_t>(c));
  hash = mix64(hash + static_cast<uint64_t>(index));
  const uint32_t bits = static_cast<uint32_t>(hash);
  return std::bit_cast<float>((bits & 0x807fffffU) | 0x3f000000U);  // 0.5 <= |x| < 1
}

/// The part of one rank.
class Replica {
 public:
  Replica(comm::Topology& topology, const ModelCase& model, DType dtype, bool zero)
      : topology_(topology),
        config_(model.config),
        store(ctx, model::parameter_specs(model.config, dtype), 1, topology.ep(),
              topology.ep_rank()),
        optimizer(ctx, store, topology, optim::OptimConfig{}, zero) {
    if (!model.bias) return;
    for (const int64_t layer : config_.moe_layers()) {
      buffers.push_back({str("model.layers.", layer, ".mlp.gate.e_score_correction_bias"),
                         Tensor::zeros(ctx, {config_.moe.experts}, DType::kF32)});
    }
  }

  Parts parts() { return {topology_, config_, store, optimizer, buffers}; }

  /// Every element becomes what `element_at` says; masters are the values before rounding.
  void fill(int salt) {
    each([&](const Place& place, Tensor& tensor) {
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        const float x = element_at(place.name, place.field, place.first + i, salt);
        if (tensor.dtype() == DType::kBF16) {
          tensor.data<bf16>()[i] = bf16(x);
        } else {
          tensor.data<float>()[i] = x;
        }
      }
    });
  }
  /// Every element becomes NaN, which `holds` never takes.
  void spoil() {
    each([](const Place&, Tensor& tensor) {
      std::memset(tensor.raw_data(), 0xff, static_cast<size_t>(tensor.bytes()));
    });
  }
  ::testing::AssertionResult holds(int salt, bool optimizer_too = true) {
    std::string wrong;
    each([&](const Place& place, Tensor& tensor) {
      if (!optimizer_too && !place.weight) return;
      for (int64_t i = 0; i < tensor.numel() && wrong.empty(); ++i) {
        const float x = element_at(place.name, place.field, place.first + i, salt);
        const bool equal =
            tensor.dtype() == DType::kBF16
                ? tensor.data<bf16>()[i].bits == bf16(x).bits
                : std::bit_cast<uint32_t>(tensor.data<float>()[i]) == std::bit_cast<uint32_t>(x);
        if (!equal) wrong = str(place.field, " of ", place.name, " at ", place.first + i);
      }
    });
    if (wrong.empty()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "another element: " << wrong;
  }

 private:
  struct Place {
    std::string name, field;
    int64_t first;  // index in the whole model of the tensor's first element
    bool weight;    // not of the optimizer
  };

  template <typename F>
  void each(F&& f) {
    const auto base = [this](const nn::Parameter& p) {
      return p.spec.sync == nn::SyncGroup::kExpert ? topology_.ep_rank() * p.value.numel() : 0;
    };
    for (const optim::StatePiece& piece : optimizer.pieces()) {
      const nn::Parameter& p = *piece.parameter;
      const int64_t first = base(p) + piece.begin;
      Tensor m = piece.m, v = piece.v, master = piece.master;
      f(Place{p.spec.name, "m", first, false}, m);
      f(Place{p.spec.name, "v", first, false}, v);
      if (p.spec.dtype != DType::kF32) f(Place{p.spec.name, "value", first, false}, master);
    }
    for (nn::Parameter& p : store.all()) f(Place{p.spec.name, "value", base(p), true}, p.value);
    for (NamedTensor& buffer : buffers) f(Place{buffer.name, "bias", 0, true}, buffer.values);
  }

  comm::Topology& topology_;
  model::DecoderConfig config_;

 public:
  Context ctx;
  nn::ParameterStore store;
  optim::AdamW optimizer;
  std::vector<NamedTensor> buffers;
};

/// A replica alone in its world.
struct Single {
  explicit Single(const ModelCase& model, DType dtype = DType::kF32)
      : world(comm::make_self_communicator()),
        topology(*world, 1),
        replica(topology, model, dtype, false) {}
  std::unique_ptr<comm::Communicator> world;
  comm::Topology topology;
  Replica replica;
};

inline RunState state_at(int64_t step) {
  RunState state;
  state.step = step;
  state.updates = step;
  state.version = "0123456789ab";
  return state;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
}
/// All files of a folder, sorted.
inline std::vector<std::string> files_of(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace spillway::checkpoint
