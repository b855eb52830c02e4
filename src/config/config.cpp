#include "spillway/config/config.h"

#include "spillway/core/error.h"
#include "spillway/core/math.h"
#include "spillway/plan/sizing.h"

namespace spillway::config {

model::DecoderConfig decoder_config(const Config& config) {
  return {.model = config.model, .moe = config.moe, .recompute = config.recompute};
}

DType compute_dtype(const Config& config) { return config.run.dtype; }

Device device(const Config& config) {
  return config.run.device == DeviceChoice::kCuda ? Device::kCuda : Device::kCpu;
}

int64_t tokens_per_micro_batch(const Config& config) {
  return checked_mul(config.train.micro_batch, config.data.seq);
}

int64_t sequences_per_step(const Config& config, int64_t world_size) {
  return checked_mul(world_size, checked_mul(config.train.micro_batch, config.train.grad_accum));
}

capacity::LayerFacts layer_facts(const Config& config) {
  const moe::MoeConfig& moe = config.moe;
  const int64_t ep = config.parallel.ep;
  SPILLWAY_CHECK(moe.experts >= 1 && ep >= 1 && moe.experts % ep == 0, "moe.experts is ",
                 moe.experts, "; allowed: a positive multiple of parallel.ep = ", ep);
  const int64_t num_tokens = checked_mul(ep, tokens_per_micro_batch(config));
  const int64_t experts_per_rank = moe.experts / ep;
  return {.alignment = moe.alignment,
          .worst_case_slots =
              plan::worst_case_slots(num_tokens, moe.top_k, experts_per_rank, moe.alignment),
          .balanced_slots = plan::balanced_slots(num_tokens, moe.top_k, moe.experts,
                                                 experts_per_rank, moe.alignment)};
}

bool full_ep_lines(const Config& config, int64_t world_size) {
  if (config.log.ep != EpLines::kAuto) return config.log.ep == EpLines::kFull;
  return world_size <= kFullEpRanks;
}

}  // namespace spillway::config
