#pragma once
// Scores, choice and weights of a router, and the terms of its losses. T tokens, E experts, K
// chosen. All arithmetic in the accumulator dtype (f32; f64 for gradient checks).

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

struct RoutingOptions {
  /// softmax over all E, then top-k of the probabilities (transformers, Megatron's pre-softmax);
  /// otherwise top-k of the logits, then softmax over the chosen K.
  bool softmax_before_topk = true;
  /// Divide the K weights by their sum. No effect at K = 1, nor after a softmax over the chosen.
  bool normalize_topk = true;
  /// Factor on the weights.
  double scale = 1.0;
};

/// Chooses K experts a token, ties to the lower id, ids of a token in descending order of score.
/// logits [T,E]; out: topk_idx i32 [T,K], gate [T,K], probs [T,E] = softmax over all E (what
/// balance losses use, whatever the options).
struct RouteArgs {
  const Tensor& logits;
  RoutingOptions options;
  Tensor& topk_idx;
  Tensor& gate;
  Tensor& probs;
};
void route(Context& ctx, const RouteArgs& args);

/// Weights of given ids (forced routing, recompute): fills gate and probs for the topk_idx given.
void route_given(Context& ctx, const RouteArgs& args);

/// dlogits [T,E] is overwritten with the sum of: the weights' gradient d_gate [T,K] through
/// `options`, the gradient d_probs [T,E] through the softmax over all E (undefined: none), and
/// z_scale * 2 * lse_t * probs (z-loss; lse = log-sum-exp of the logits; 0: none).
struct RouteBackwardArgs {
  const Tensor& d_gate;
  const Tensor& d_probs;
  const Tensor& logits;
  const Tensor& topk_idx;
  const Tensor& gate;
  const Tensor& probs;
  RoutingOptions options;
  double z_scale = 0.0;
  Tensor& dlogits;
};
void route_backward(Context& ctx, const RouteBackwardArgs& args);

/// counts[e] = how often e stands in topk_idx [T,K]; -1 entries are none. counts i64 [E].
void count_experts(Context& ctx, const Tensor& topk_idx, Tensor& counts);
/// Column sums over tokens in f64, fixed order: sums f64 [E] of probs [T,E].
void column_sums(Context& ctx, const Tensor& probs, Tensor& sums);
/// sum over tokens of log-sum-exp(logits_t)^2, f64 (ST-MoE's z-loss, Zoph et al. 2022).
double z_loss_sum(Context& ctx, const Tensor& logits);

}  // namespace spillway::kernels
