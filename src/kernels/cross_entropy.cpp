#include "spillway/kernels/cross_entropy.h"

#include "checks.h"
#include "cpu/cross_entropy.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

void check_operands(Context& ctx, const char* op, const Tensor& logits, const Tensor& targets,
                    const Tensor& lse) {
  check_tensors(ctx, op, {{"logits", logits}, {"targets", targets}, {"lse", lse}});
  check_floating(op, {"logits", logits});
  check_dtype(op, {"targets", targets}, DType::kI32);
  check_dtype(op, {"lse", lse}, accumulator_dtype(logits.dtype()));
  SPILLWAY_CHECK(logits.dim(-1) > 0, op, ": logits have shape ", logits.shape(),
                 ", the vocabulary must not be empty");
  check_numel(op, {"targets", targets}, logits.shape().rows());
  check_numel(op, {"lse", lse}, logits.shape().rows());
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor& loss,
                   Tensor& lse) {
  constexpr const char* kOp = "cross_entropy";
  check_operands(ctx, kOp, logits, targets, lse);
  check_tensors(ctx, kOp, {{"loss", loss}});
  check_dtype(kOp, {"loss", loss}, accumulator_dtype(logits.dtype()));
  check_numel(kOp, {"loss", loss}, logits.shape().rows());
  if (logits.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, cross_entropy, logits, targets, loss, lse);
}

void cross_entropy_backward(Context& ctx, const CrossEntropyBackwardArgs& args) {
  constexpr const char* kOp = "cross_entropy_backward";
  check_operands(ctx, kOp, args.logits, args.targets, args.lse);
  check_tensors(ctx, kOp, {{"dlogits", args.dlogits}});
  check_dtype(kOp, {"dlogits", args.dlogits}, args.logits.dtype());
  check_shape(kOp, {"dlogits", args.dlogits}, args.logits.shape());
  if (args.logits.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, cross_entropy_backward, args);
}

}  // namespace spillway::kernels
