#include "spillway/kernels/routing.h"

#include "checks.h"
#include "cpu/routing.h"
#include "dispatch.h"
#include "reduction_chunks.h"

namespace spillway::kernels {
namespace {

/// What forward and backward share: logits, ids, gate, probs.
void check_routing(Context& ctx, const char* op, const Tensor& logits, const Tensor& topk_idx,
                   const Tensor& gate, const Tensor& probs) {
  check_tensors(ctx, op,
                {{"logits", logits}, {"topk_idx", topk_idx}, {"gate", gate}, {"probs", probs}});
  check_accumulator(op, {"logits", logits});
  check_rank(op, {"logits", logits}, 2);
  check_rank(op, {"topk_idx", topk_idx}, 2);
  check_dtype(op, {"topk_idx", topk_idx}, DType::kI32);
  const int64_t top_k = topk_idx.dim(1);
  SPILLWAY_CHECK(topk_idx.dim(0) == logits.dim(0), op, ": topk_idx has shape ", topk_idx.shape(),
                 " for logits ", logits.shape(), ", it must have one row a token");
  SPILLWAY_CHECK(top_k >= 1 && top_k <= logits.dim(1), op, ": ", top_k,
                 " experts per token (topk_idx ", topk_idx.shape(), ") of ", logits.dim(1),
                 " (logits ", logits.shape(), "), it must be in [1, ", logits.dim(1), "]");
  check_dtype(op, {"gate", gate}, logits.dtype());
  check_shape(op, {"gate", gate}, topk_idx.shape());
  check_dtype(op, {"probs", probs}, logits.dtype());
  check_shape(op, {"probs", probs}, logits.shape());
}

void check_groups(const char* op, const RoutingOptions& options, int64_t num_experts,
                  int64_t top_k) {
  const int64_t groups = options.groups, chosen = options.topk_groups;
  if (groups == 0 || groups == 1) return;
  SPILLWAY_CHECK(groups > 0 && num_experts % groups == 0, op, ": ", groups, " groups of ",
                 num_experts, " experts, it must be a divisor");
  SPILLWAY_CHECK(chosen >= 1 && chosen <= groups && chosen * (num_experts / groups) >= top_k, op,
                 ": topk_groups is ", chosen, " of ", groups, " groups of ", num_experts / groups,
                 " experts, it must be in [1, ", groups, "] and hold ", top_k, " experts");
}

}  // namespace

void route(Context& ctx, const RouteArgs& args) {
  constexpr const char* kOp = "route";
  check_routing(ctx, kOp, args.logits, args.topk_idx, args.gate, args.probs);
  const RoutingOptions& options = args.options;
  check_groups(kOp, options, args.logits.dim(1), args.topk_idx.dim(1));
  if (args.bias.defined()) {
    check_tensors(ctx, kOp, {{"bias", args.bias}});
    check_dtype(kOp, {"bias", args.bias}, DType::kF32);
    check_shape(kOp, {"bias", args.bias}, {args.logits.dim(1)});
  }
  SPILLWAY_CHECK(options.score != ScoreFunction::kSoftmax || options.softmax_before_topk ||
                     (options.groups <= 1 && !args.bias.defined()),
                 kOp,
                 ": groups and a bias need scores of all experts: softmax_before_topk is "
                 "false, it must be true");
  if (args.logits.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, route, args);
}

void route_given(Context& ctx, const RouteArgs& args) {
  check_routing(ctx, "route_given", args.logits, args.topk_idx, args.gate, args.probs);
  if (args.logits.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, route_given, args);
}

void route_backward(Context& ctx, const RouteBackwardArgs& args) {
  constexpr const char* kOp = "route_backward";
  check_routing(ctx, kOp, args.logits, args.topk_idx, args.gate, args.probs);
  check_tensors(ctx, kOp, {{"d_gate", args.d_gate}, {"dlogits", args.dlogits}});
  check_dtype(kOp, {"d_gate", args.d_gate}, args.logits.dtype());
  check_shape(kOp, {"d_gate", args.d_gate}, args.topk_idx.shape());
  check_dtype(kOp, {"dlogits", args.dlogits}, args.logits.dtype());
  check_shape(kOp, {"dlogits", args.dlogits}, args.logits.shape());
  if (args.d_probs.defined()) {
    check_tensors(ctx, kOp, {{"d_probs", args.d_probs}});
    check_dtype(kOp, {"d_probs", args.d_probs}, args.logits.dtype());
    check_shape(kOp, {"d_probs", args.d_probs}, args.logits.shape());
  }
  if (args.logits.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, route_backward, args);
}

void count_experts(Context& ctx, const Tensor& topk_idx, Tensor& counts) {
  constexpr const char* kOp = "count_experts";
  check_tensors(ctx, kOp, {{"topk_idx", topk_idx}, {"counts", counts}});
  check_dtype(kOp, {"topk_idx", topk_idx}, DType::kI32);
  check_dtype(kOp, {"counts", counts}, DType::kI64);
  check_rank(kOp, {"counts", counts}, 1);
  SPILLWAY_DISPATCH(ctx, count_experts, topk_idx, counts);
}

void column_sums(Context& ctx, const Tensor& probs, Tensor& sums) {
  constexpr const char* kOp = "column_sums";
  check_tensors(ctx, kOp, {{"probs", probs}, {"sums", sums}});
  check_accumulator(kOp, {"probs", probs});
  check_rank(kOp, {"probs", probs}, 2);
  check_dtype(kOp, {"sums", sums}, DType::kF64);
  check_shape(kOp, {"sums", sums}, {probs.dim(1)});
  Tensor partial = Tensor::empty(ctx, {row_chunks(probs.dim(0)).count(), probs.dim(1)}, DType::kF64,
                                 Purpose::kWorkspace);
  SPILLWAY_DISPATCH(ctx, column_sums, probs, sums, partial);
}

double z_loss_sum(Context& ctx, const Tensor& logits) {
  constexpr const char* kOp = "z_loss_sum";
  check_tensors(ctx, kOp, {{"logits", logits}});
  check_accumulator(kOp, {"logits", logits});
  check_rank(kOp, {"logits", logits}, 2);
  if (logits.numel() == 0) return 0.0;
  Tensor partial =
      Tensor::empty(ctx, {row_chunks(logits.dim(0)).count()}, DType::kF64, Purpose::kWorkspace);
  return SPILLWAY_DISPATCH(ctx, z_loss_sum, logits, partial);
}

}  // namespace spillway::kernels
