#include "spillway/kernels/rms_norm.h"

#include "checks.h"
#include "cpu/rms_norm.h"
#include "dispatch.h"
#include "reduction_chunks.h"

namespace spillway::kernels {

void rms_norm(Context& ctx, const Tensor& x, const Tensor& w, double eps, Tensor& y,
              Tensor& inv_rms) {
  constexpr const char* kOp = "rms_norm";
  check_tensors(ctx, kOp, {{"x", x}, {"w", w}, {"y", y}, {"inv_rms", inv_rms}});
  check_floating(kOp, {"x", x});
  check_dtype(kOp, {"w", w}, x.dtype());
  check_dtype(kOp, {"y", y}, x.dtype());
  check_dtype(kOp, {"inv_rms", inv_rms}, accumulator_dtype(x.dtype()));
  check_shape(kOp, {"w", w}, {x.dim(-1)});
  check_shape(kOp, {"y", y}, x.shape());
  check_numel(kOp, {"inv_rms", inv_rms}, x.shape().rows());
  SPILLWAY_CHECK(eps >= 0.0, kOp, ": eps is ", eps, ", it must be at least 0");
  if (x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, rms_norm, x, w, eps, y, inv_rms);
}

void rms_norm_backward(Context& ctx, const RmsNormBackwardArgs& args) {
  constexpr const char* kOp = "rms_norm_backward";
  const Tensor& x = args.x;
  check_tensors(ctx, kOp,
                {{"dy", args.dy},
                 {"x", x},
                 {"w", args.w},
                 {"inv_rms", args.inv_rms},
                 {"dx", args.dx},
                 {"dw", args.dw}});
  check_floating(kOp, {"x", x});
  check_dtype(kOp, {"dy", args.dy}, x.dtype());
  check_dtype(kOp, {"w", args.w}, x.dtype());
  check_dtype(kOp, {"dx", args.dx}, x.dtype());
  check_dtype(kOp, {"inv_rms", args.inv_rms}, accumulator_dtype(x.dtype()));
  check_dtype(kOp, {"dw", args.dw}, accumulator_dtype(x.dtype()));
  check_shape(kOp, {"dy", args.dy}, x.shape());
  check_shape(kOp, {"dx", args.dx}, x.shape());
  check_shape(kOp, {"w", args.w}, {x.dim(-1)});
  check_shape(kOp, {"dw", args.dw}, {x.dim(-1)});
  check_numel(kOp, {"inv_rms", args.inv_rms}, x.shape().rows());
  if (x.numel() == 0) return;
  Tensor partial = Tensor::empty(ctx, {row_chunks(x.shape().rows()).count(), x.dim(-1)},
                                 args.dw.dtype(), Purpose::kWorkspace);
  SPILLWAY_DISPATCH(ctx, rms_norm_backward, args, partial);
}

int64_t rms_norm_backward_workspace_bytes(int64_t rows, int64_t columns, DType dtype) {
  return row_chunks(rows).count() * columns * dtype_bytes(accumulator_dtype(dtype));
}

}  // namespace spillway::kernels
