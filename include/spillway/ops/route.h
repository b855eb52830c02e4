#pragma once

#include "spillway/autograd/tape.h"
#include "spillway/kernels/routing.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

struct RouteOptions {
  kernels::RoutingOptions routing;
  int64_t top_k = 1;
  /// Experts dealt out in turn, whatever the logits say.
  bool force_balanced = false;
  /// One over the number of (rank, micro-batch) cells of the step.
  double cell_scale = 1.0;
  /// One over the number of tokens of the step.
  double token_scale = 1.0;
};

/// What the router decided for T tokens.
struct RouteResult {
  Tensor topk_idx;    ///< i32 [T,K]; never part of a gradient
  Variable gate;      ///< [T,K] weights
  Variable aux_loss;  ///< [1] this cell's share of the switch loss: cell_scale * L
  Variable z_loss;    ///< [1] this cell's share: token_scale * sum_t lse_t^2
};

/// logits [T,E] in the accumulator dtype. L = E/K * sum_e (c_e/T) * P_e, c_e = assignments chosen
/// (a constant), P_e = mean over tokens of softmax over all E: 1 when balanced (Switch
/// Transformers, Fedus et al. 2021, divided by K). T = 0 gives 0. In a recompute region the choice
/// is kept, never taken again.
RouteResult route(Tape& tape, const Variable& logits, const RouteOptions& options);

}  // namespace spillway::ops
