#include "spillway/kernels/fill.h"

#include "checks.h"
#include "cpu/fill.h"
#include "dispatch.h"

namespace spillway::kernels {

void fill(Context& ctx, double value, Tensor& x) {
  constexpr const char* kOp = "fill";
  check_tensors(ctx, kOp, {{"x", x}});
  check_floating(kOp, {"x", x});
  if (x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, fill, value, x);
}

void fill_normal(Context& ctx, const FillNormalArgs& args) {
  constexpr const char* kOp = "fill_normal";
  check_tensors(ctx, kOp, {{"x", args.x}});
  check_floating(kOp, {"x", args.x});
  SPILLWAY_CHECK(args.first >= 0, kOp, ": first is ", args.first, ", it must be at least 0");
  if (args.x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, fill_normal, args);
}

void fill_unless_rounds_to(Context& ctx, const Tensor& rounded, Tensor& x) {
  constexpr const char* kOp = "fill_unless_rounds_to";
  check_tensors(ctx, kOp, {{"rounded", rounded}, {"x", x}});
  check_dtype(kOp, {"x", x}, DType::kF32);
  SPILLWAY_CHECK(rounded.dtype() == DType::kF32 || rounded.dtype() == DType::kBF16, kOp,
                 ": rounded is ", dtype_name(rounded.dtype()), ", it must be f32 or bf16");
  check_numel(kOp, {"rounded", rounded}, x.numel());
  if (x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, fill_unless_rounds_to, rounded, x);
}

}  // namespace spillway::kernels
