#pragma once
// Scores, choice and weights of a router, and the terms of its losses. T tokens, E experts, K
// chosen. All arithmetic in the accumulator dtype (f32; f64 for gradient checks).

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// Turns logits into scores. Softmax sees all experts of a token, the others one logit each.
enum class ScoreFunction {
  kSoftmax,
  kSigmoid,
  kSqrtSoftplus,  ///< sqrt(log(1 + e^logit))
};

struct RoutingOptions {
  ScoreFunction score = ScoreFunction::kSoftmax;
  /// softmax over all E, then top-k of the probabilities (transformers, Megatron's pre-softmax);
  /// otherwise top-k of the logits, then softmax over the chosen K, which goes with neither groups
  /// nor a bias. Without effect on other scores.
  bool softmax_before_topk = true;
  /// Divide the K weights by their sum. No effect at K = 1, nor after a softmax over the chosen.
  bool normalize_topk = true;
  /// Factor on the weights.
  double scale = 1.0;
  /// G groups of E/G consecutive experts, of which a token uses only the `topk_groups` best; a
  /// group's score is the sum of its two best biased scores (of its only one when E = G), ties go
  /// to the lower group. 0 and 1: off.
  int64_t groups = 1;
  int64_t topk_groups = 1;
};

/// Added to a sum of scores that divides: scores may all vanish, the quotient is then 0.
inline constexpr double kScoreSumGuard = 1e-20;

/// Chooses K experts a token by score + bias, ties to the lower id, ids of a token in descending
/// order of it. Experts of groups that were not chosen are left out of the comparison. Replacing
/// their scores by 0.0, as DeepSeek code in older versions of transformers does, is not the same: a
/// 0.0 beats every negative biased score, and the choice leaves the groups.
/// Weights come from scores without the bias: see RoutingOptions; those of sigmoid and
/// sqrtsoftplus are divided by (sum + kScoreSumGuard) (DeepSeek-V3, arXiv 2412.19437, 2.1.2).
/// logits [T,E], bias f32 [E] or undefined; out: topk_idx i32 [T,K], gate [T,K], probs [T,E] = what
/// balance losses use: softmax over all E, or score / (sum of scores + kScoreSumGuard); no bias,
/// groups or scale in it. Finite for every finite logit.
struct RouteArgs {
  const Tensor& logits;
  RoutingOptions options;
  Tensor& topk_idx;
  Tensor& gate;
  Tensor& probs;
  Tensor bias = {};
};
void route(Context& ctx, const RouteArgs& args);

/// Weights of given ids (forced routing, recompute): fills gate and probs for the topk_idx given.
/// The bias plays no part.
void route_given(Context& ctx, const RouteArgs& args);

/// dlogits [T,E] is overwritten with the sum of: the weights' gradient d_gate [T,K] through
/// `options`, the gradient d_probs [T,E] through what made probs (undefined: none), and z_scale * 2
/// * lse_t * softmax over all E (z-loss; lse = log-sum-exp of the logits; 0: none). The choice is a
/// constant.
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
