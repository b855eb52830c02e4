#include "spillway/kernels/kept_gates.h"

#include "checks.h"
#include "cpu/kept_gates.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

void check_gates(Context& ctx, const char* op, const Tensor& gate, const Tensor& row_of,
                 const Tensor& topk_idx) {
  check_tensors(ctx, op, {{"gate", gate}, {"row_of", row_of}});
  check_rank(op, {"gate", gate}, 2);
  check_accumulator(op, {"gate", gate});
  check_dtype(op, {"row_of", row_of}, DType::kI32);
  check_shape(op, {"row_of", row_of}, gate.shape());
  if (!topk_idx.defined()) return;
  check_tensors(ctx, op, {{"topk_idx", topk_idx}});
  check_dtype(op, {"topk_idx", topk_idx}, DType::kI32);
  check_shape(op, {"topk_idx", topk_idx}, gate.shape());
}

void check_like_gate(Context& ctx, const char* op, const NamedTensor& t, const Tensor& gate) {
  check_tensors(ctx, op, {t});
  check_dtype(op, t, gate.dtype());
  check_shape(op, t, gate.shape());
}

}  // namespace

void renormalize_kept(Context& ctx, const RenormalizeArgs& args) {
  constexpr const char* kOp = "renormalize_kept";
  check_gates(ctx, kOp, args.gate, args.row_of, args.topk_idx);
  check_like_gate(ctx, kOp, {"out", args.out}, args.gate);
  if (args.gate.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, renormalize_kept, args);
}

void renormalize_kept_backward(Context& ctx, const RenormalizeBackwardArgs& args) {
  constexpr const char* kOp = "renormalize_kept_backward";
  check_gates(ctx, kOp, args.gate, args.row_of, args.topk_idx);
  check_like_gate(ctx, kOp, {"d_out", args.d_out}, args.gate);
  check_like_gate(ctx, kOp, {"d_gate", args.d_gate}, args.gate);
  if (args.gate.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, renormalize_kept_backward, args);
}

}  // namespace spillway::kernels
