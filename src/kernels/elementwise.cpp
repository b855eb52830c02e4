#include "spillway/kernels/elementwise.h"

#include "checks.h"
#include "cpu/elementwise.h"
#include "dispatch.h"
#include "reduction_chunks.h"

namespace spillway::kernels {

void add(Context& ctx, const Tensor& a, const Tensor& b, Tensor& out) {
  constexpr const char* kOp = "add";
  check_tensors(ctx, kOp, {{"a", a}, {"b", b}, {"out", out}});
  check_floating(kOp, {"a", a});
  check_dtype(kOp, {"b", b}, a.dtype());
  check_dtype(kOp, {"out", out}, a.dtype());
  check_shape(kOp, {"b", b}, a.shape());
  check_shape(kOp, {"out", out}, a.shape());
  if (a.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, add, a, b, out);
}

void add_into(Context& ctx, const Tensor& x, Tensor& acc) {
  constexpr const char* kOp = "add_into";
  check_tensors(ctx, kOp, {{"x", x}, {"acc", acc}});
  check_floating(kOp, {"x", x});
  check_floating(kOp, {"acc", acc});
  check_shape(kOp, {"acc", acc}, x.shape());
  if (x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, add_into, x, acc);
}

void scale_in_place(Context& ctx, double factor, Tensor& x) {
  constexpr const char* kOp = "scale_in_place";
  check_tensors(ctx, kOp, {{"x", x}});
  check_floating(kOp, {"x", x});
  if (x.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, scale_in_place, factor, x);
}

void cast(Context& ctx, const Tensor& from, Tensor& to) {
  constexpr const char* kOp = "cast";
  check_tensors(ctx, kOp, {{"from", from}, {"to", to}});
  check_floating(kOp, {"from", from});
  check_floating(kOp, {"to", to});
  check_shape(kOp, {"to", to}, from.shape());
  if (from.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, cast, from, to);
}

double sum_squares(Context& ctx, const Tensor& x) {
  constexpr const char* kOp = "sum_squares";
  check_tensors(ctx, kOp, {{"x", x}});
  check_floating(kOp, {"x", x});
  if (x.numel() == 0) return 0.0;
  Tensor partial =
      Tensor::empty(ctx, {element_chunks(x.numel()).count()}, DType::kF64, Purpose::kWorkspace);
  return SPILLWAY_DISPATCH(ctx, sum_squares, x, partial);
}

uint64_t checksum(const Tensor& x) {
  SPILLWAY_CHECK(x.defined(), "checksum: x is undefined");
  SPILLWAY_CHECK(x.device() == Device::kCpu, "checksum: x is on ", device_name(x.device()),
                 ", it must be on cpu");
  return cpu::checksum(x);
}

}  // namespace spillway::kernels
