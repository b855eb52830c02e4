#pragma once

#include <string>

#include "spillway/model/config.h"
#include "spillway/tensor/dtype.h"

namespace spillway::checkpoint {

/// config.json of a checkpoint, by which transformers opens it: model_type qwen3_moe, olmoe or
/// mixtral where that model computes what ours does, else "spillway_moe", which nobody takes for
/// another. `dtype` is that of the weights.
std::string transformers_config_text(const model::DecoderConfig& config, DType dtype);

}  // namespace spillway::checkpoint
