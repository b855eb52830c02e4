#pragma once
// Balance without a loss term: a bias that acts on the choice of experts only, moved once a step
// against the load (Wang et al. 2024, arXiv 2408.15664; DeepSeek-V3, arXiv 2412.19437, 2.1.2).

#include <cstdint>
#include <span>
#include <string>

#include "spillway/tensor/tensor.h"

namespace spillway::moe {

/// The bias of one MoE layer: a buffer, no parameter; the same on every rank.
struct SelectionBias {
  std::string name;       ///< "model.layers.{i}.mlp.gate.e_score_correction_bias"
  int64_t moe_layer = 0;  ///< index among the MoE layers
  Tensor values;          ///< f32 [E], shared with the router
};

/// bias_e += rate * sign(sum(counts) - E * counts_e), sign(0) = 0: up for an expert below the mean,
/// down for one above it. `counts` [E]: assignments before drops over the world and all
/// micro-batches of a step. bias f32 [E].
void update_selection_bias(Tensor& bias, std::span<const int64_t> counts, double rate);

}  // namespace spillway::moe
