#include "spillway/train/memory_saves.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "spillway/core/choice.h"
#include "spillway/core/math.h"

namespace spillway::train {
namespace {

using model::RecomputeRegion;

SaveState state_of(const model::RecomputeConfig& recompute, std::string_view name) {
  if (recompute.region == RecomputeRegion::kNone) return SaveState::kNo;
  if (name == autograd::Tape::kAlwaysSaved) return SaveState::kAlways;
  const auto& save = recompute.save;
  const bool saved = std::find(save.begin(), save.end(), name) != save.end();
  return saved ? SaveState::kYes : SaveState::kNo;
}

const char* state_text(SaveState state) {
  if (state == SaveState::kAlways) return "always";
  return state == SaveState::kYes ? "yes" : "no";
}

std::string avoids(const config::Config& config, std::string_view name) {
  if (name == autograd::Tape::kAlwaysSaved) return "another choice of experts";
  if (name == ops::kSaveRouter) return "the router's product";
  if (name == ops::kSaveExpertUp) return "the experts' first product";
  if (name == ops::kSaveExpertAct) return "SwiGLU of experts and dense networks";
  if (name == ops::kSaveAttention) return "attention";
  const AvoidedByDispatch spared = avoided_by_dispatch(config);
  return str(spared.calls, config.ep.fused_prepare ? " fused prepares, " : " prepares, ",
             spared.calls, " dispatches, ", size_text(spared.all_to_all_bytes), " sent");
}

}  // namespace

std::array<SaveEstimate, ops::kHeldNames.size()> estimate_saves(const config::Config& config,
                                                                const MemoryOptions& options) {
  config::Config all = config;
  if (all.recompute.region == RecomputeRegion::kNone)
    all.recompute.region = RecomputeRegion::kLayer;
  all.recompute.save.assign(ops::kSaveNames.begin(), ops::kSaveNames.end());
  const MemoryEstimate estimate = estimate_memory(all, options);
  std::array<SaveEstimate, ops::kHeldNames.size()> saves;
  for (size_t i = 0; i < saves.size(); ++i) {
    saves[i] = {ops::kHeldNames[i], estimate.saved[i],
                state_of(config.recompute, ops::kHeldNames[i])};
  }
  return saves;
}

AvoidedByDispatch avoided_by_dispatch(const config::Config& config) {
  const auto layers = static_cast<int64_t>(config::decoder_config(config).moe_layers().size());
  AvoidedByDispatch spared{.calls = layers * config.train.grad_accum};
  const int64_t assignments = config::tokens_per_micro_batch(config) * config.moe.top_k;
  const int64_t leave = assignments - assignments / config.parallel.ep;
  const DType dtype = config::compute_dtype(config);
  const int64_t row_bytes =
      config.model.hidden * dtype_bytes(dtype) + dtype_bytes(accumulator_dtype(dtype));
  spared.all_to_all_bytes = checked_mul(spared.calls, checked_mul(leave, row_bytes));
  return spared;
}

std::string describe_saves(const config::Config& config, const MemoryOptions& options) {
  const RecomputeRegion region = config.recompute.region;
  const bool has_experts = !config::decoder_config(config).moe_layers().empty();
  if (!has_experts && region == RecomputeRegion::kNone) return "";
  constexpr int kNameWidth = 18, kSizeWidth = 28, kStateWidth = 9;
  std::ostringstream out;
  out << "\nnamed saves: what all recompute regions of a micro-batch hold on a rank (estimate)\n";
  const auto row = [&](std::string_view name, std::string_view held, std::string_view saved,
                       std::string_view avoided) {
    out << "  " << std::left << std::setw(kNameWidth) << name << std::setw(kSizeWidth) << held
        << std::setw(kStateWidth) << saved << avoided << "\n";
  };
  row("", "held when saved", "saved", "avoids, a rank and step");
  for (const SaveEstimate& save : estimate_saves(config, options)) {
    if (save.bytes == 0) continue;
    row(save.name, size_text(save.bytes), state_text(save.state), avoids(config, save.name));
  }
  if (region == RecomputeRegion::kNone) {
    out << "recompute.region is \"none\": backward computes nothing again and has all of this and "
        << "more in \"activations\" and\n\"receive buffers\" above; the rows are those of region "
        << "\"layer\".";
  } else {
    out << "Regions: \"" << choice_name(model::kRegionChoices, region)
        << "\". What is saved is in the table above too; the rest is made again in backward.";
  }
  return out.str();
}

}  // namespace spillway::train
