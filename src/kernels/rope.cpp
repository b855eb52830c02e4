#include "spillway/kernels/rope.h"

#include "checks.h"
#include "cpu/rope.h"
#include "dispatch.h"

namespace spillway::kernels {

void rope_table(double theta, Tensor& cos, Tensor& sin) {
  constexpr const char* kOp = "rope_table";
  SPILLWAY_CHECK(cos.defined() && sin.defined(), kOp, ": cos or sin is undefined");
  SPILLWAY_CHECK(cos.device() == Device::kCpu && sin.device() == Device::kCpu, kOp, ": cos is on ",
                 device_name(cos.device()), " and sin on ", device_name(sin.device()),
                 ", both must be on cpu");
  SPILLWAY_CHECK(cos.dtype() == DType::kF32 || cos.dtype() == DType::kF64, kOp, ": cos is ",
                 dtype_name(cos.dtype()), ", it must be f32 or f64");
  check_rank(kOp, {"cos", cos}, 2);
  check_dtype(kOp, {"sin", sin}, cos.dtype());
  check_shape(kOp, {"sin", sin}, cos.shape());
  SPILLWAY_CHECK(theta > 0.0, kOp, ": theta is ", theta, ", it must be above 0");
  if (cos.numel() == 0) return;
  cpu::rope_table(theta, cos, sin);
}

void rope(Context& ctx, const RopeArgs& args) {
  constexpr const char* kOp = "rope";
  const Tensor& x = args.x;
  check_tensors(ctx, kOp, {{"x", x}, {"cos", args.cos}, {"sin", args.sin}, {"y", args.y}});
  check_floating(kOp, {"x", x});
  check_rank(kOp, {"x", x}, 4);
  check_dtype(kOp, {"cos", args.cos}, accumulator_dtype(x.dtype()));
  check_dtype(kOp, {"sin", args.sin}, accumulator_dtype(x.dtype()));
  check_dtype(kOp, {"y", args.y}, x.dtype());
  check_shape(kOp, {"y", args.y}, x.shape());
  check_rank(kOp, {"cos", args.cos}, 2);
  check_shape(kOp, {"sin", args.sin}, args.cos.shape());
  SPILLWAY_CHECK(x.dim(3) == 2 * args.cos.dim(1) && x.dim(1) <= args.cos.dim(0), kOp,
                 ": cos has shape ", args.cos.shape(), " for x ", x.shape(),
                 ", it must be [S or more, D/2]");
  if (x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, rope, args);
}

}  // namespace spillway::kernels
