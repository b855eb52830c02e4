#include "spillway/train/model_flops.h"

#include "spillway/model/decoder.h"

namespace spillway::train {

namespace {

double tokens_per_step(const config::Config& config, int64_t world) {
  return static_cast<double>(config::sequences_per_step(config, world) * config.data.seq);
}

/// An untied embedding is only looked up; a tied one is the output layer's matrix too.
int64_t looked_up(const config::Config& config) {
  return config.model.tie_embeddings ? 0 : config.model.vocab_size * config.model.hidden;
}

}  // namespace

double step_flops(const config::Config& config, int64_t world) {
  const model::DecoderConfig decoder = config::decoder_config(config);
  const int64_t multiplied = model::count_parameters(decoder).active - looked_up(config);
  const double attention = static_cast<double>(config.model.layers * config.model.heads *
                                               decoder.head_dim() * config.data.seq);
  return 6.0 * tokens_per_step(config, world) * (static_cast<double>(multiplied) + attention);
}

double matrix_flops(const config::Config& config, int64_t world) {
  int64_t multiplied = -looked_up(config);
  for (const nn::ParameterSpec& spec :
       model::parameter_specs(config::decoder_config(config), DType::kF32)) {
    if (spec.shape.rank() < 2) continue;
    const int64_t n = spec.shape.numel();
    multiplied +=
        spec.sync == nn::SyncGroup::kExpert ? n / config.moe.experts * config.moe.top_k : n;
  }
  return 6.0 * tokens_per_step(config, world) * static_cast<double>(multiplied);
}

}  // namespace spillway::train
