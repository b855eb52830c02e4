#pragma once
// Weights from a checkpoint or from files of transformers, without a run around them.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/checkpoint/safetensors.h"
#include "spillway/model/config.h"
#include "spillway/nn/parameter.h"
#include "spillway/runtime/context.h"

namespace spillway::checkpoint {

/// Which experts of a parameter a rank holds.
struct ExpertSlice {
  int64_t ep = 1;
  int64_t ep_rank = 0;
};

/// Weights and buffers alone, into a store that was made for (ep, ep_rank). No collective. `path`:
/// a checkpoint of ours (committed; checksums are verified), a directory of transformers
/// (model.safetensors or model.safetensors.index.json), or one .safetensors file. Takes names per
/// expert (Qwen3-MoE, OLMoE, DeepSeek, Mixtral) and fused ones; fused experts may be [E,2I,H] or
/// [E,H,2I] (and down [E,H,I] or [E,I,H]), told apart by their shape. Converts between f32, bf16
/// and f64. A tensor that is missing, given twice, of another shape or not of this model is a
/// DataError that names it; only rotary inv_freq buffers and layers for multi-token prediction are
/// passed over. Nothing is copied before all is checked.
void load_weights(Context& ctx, const std::string& path, const model::DecoderConfig& config,
                  ExpertSlice slice, nn::ParameterStore& store,
                  const std::vector<NamedTensor>& buffers = {});

}  // namespace spillway::checkpoint
