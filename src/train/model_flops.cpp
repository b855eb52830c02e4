#include "spillway/train/model_flops.h"

#include "spillway/model/decoder.h"

namespace spillway::train {

double step_flops(const config::Config& config, int64_t world) {
  const model::DecoderConfig decoder = config::decoder_config(config);
  int64_t multiplied = model::count_parameters(decoder).active;
  // An untied embedding is only looked up; a tied one is the output layer's matrix too.
  if (!config.model.tie_embeddings) multiplied -= config.model.vocab_size * config.model.hidden;
  const double tokens =
      static_cast<double>(config::sequences_per_step(config, world) * config.data.seq);
  const double attention = static_cast<double>(config.model.layers * config.model.heads *
                                               decoder.head_dim() * config.data.seq);
  return 6.0 * tokens * (static_cast<double>(multiplied) + attention);
}

}  // namespace spillway::train
