#include "spillway/kernels/swiglu.h"

#include "checks.h"
#include "cpu/swiglu.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

/// x [C, 2I] against y (or dy) [C, I] and the scale of rows.
void check_operands(Context& ctx, const char* op, const Tensor& x, NamedTensor y,
                    NamedTensor row_scale, RowGroups groups) {
  check_tensors(ctx, op, {{"x", x}, y});
  check_floating(op, {"x", x});
  check_rank(op, {"x", x}, 2);
  SPILLWAY_CHECK(x.dim(1) % 2 == 0, op, ": x has shape ", x.shape(),
                 ", the last dimension must be even");
  check_dtype(op, y, x.dtype());
  check_shape(op, y, {x.dim(0), x.dim(1) / 2});
  if (row_scale.tensor.defined()) {
    check_tensors(ctx, op, {row_scale});
    check_dtype(op, row_scale, accumulator_dtype(x.dtype()));
    check_shape(op, row_scale, {x.dim(0)});
  }
  check_row_groups(op, groups, x.dim(0));
}

}  // namespace

void swiglu(Context& ctx, const SwigluArgs& args) {
  check_operands(ctx, "swiglu", args.x, {"y", args.y}, {"row_scale", args.row_scale}, args.groups);
  if (args.x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, swiglu, args);
}

void swiglu_backward(Context& ctx, const SwigluBackwardArgs& args) {
  constexpr const char* kOp = "swiglu_backward";
  check_operands(ctx, kOp, args.x, {"dy", args.dy}, {"row_scale", args.row_scale}, args.groups);
  check_tensors(ctx, kOp, {{"dx", args.dx}});
  check_dtype(kOp, {"dx", args.dx}, args.x.dtype());
  check_shape(kOp, {"dx", args.dx}, args.x.shape());
  SPILLWAY_CHECK(args.d_row_scale.defined() == args.row_scale.defined(), kOp, ": row_scale is ",
                 args.row_scale.defined() ? "defined" : "undefined", " and d_row_scale is not");
  if (args.d_row_scale.defined()) {
    check_tensors(ctx, kOp, {{"d_row_scale", args.d_row_scale}});
    check_dtype(kOp, {"d_row_scale", args.d_row_scale}, args.row_scale.dtype());
    check_shape(kOp, {"d_row_scale", args.d_row_scale}, {args.x.dim(0)});
  }
  if (args.x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, swiglu_backward, args);
}

}  // namespace spillway::kernels
