#include "spillway/kernels/rows.h"

#include "checks.h"
#include "cpu/rows.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

/// `out` has at least as many rows as `index` and one dtype with x.
void check_gather(Context& ctx, const char* op, const Tensor& x, const Tensor& index,
                  const Tensor& out) {
  check_tensors(ctx, op, {{"x", x}, {"index", index}, {"out", out}});
  check_dtype(op, {"index", index}, DType::kI32);
  check_rank(op, {"index", index}, 1);
  check_dtype(op, {"out", out}, x.dtype());
}

/// The two-buffer numbering: map [T,K] over remote, then local.
void check_map(Context& ctx, const char* op, const Tensor& map, const Tensor& remote,
               const Tensor& local, const Tensor& out) {
  check_tensors(ctx, op, {{"map", map}, {"remote", remote}, {"local", local}, {"out", out}});
  check_dtype(op, {"map", map}, DType::kI32);
  check_rank(op, {"map", map}, 2);
  check_floating(op, {"local", local});
  check_dtype(op, {"remote", remote}, local.dtype());
  check_dtype(op, {"out", out}, local.dtype());
}

}  // namespace

void gather_rows(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out) {
  constexpr const char* kOp = "gather_rows";
  check_gather(ctx, kOp, x, index, out);
  check_rank(kOp, {"x", x}, 2);
  check_rank(kOp, {"out", out}, 2);
  SPILLWAY_CHECK(out.dim(0) >= index.dim(0) && out.dim(1) == x.dim(1), kOp, ": out has shape ",
                 out.shape(), ", it must be [", index.dim(0), " or more, ", x.dim(1), "]");
  if (index.numel() == 0 || x.dim(1) == 0) return;
  SPILLWAY_DISPATCH(ctx, gather_rows, x, index, out);
}

void gather_scalars(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out) {
  constexpr const char* kOp = "gather_scalars";
  check_gather(ctx, kOp, x, index, out);
  check_floating(kOp, {"x", x});
  SPILLWAY_CHECK(out.numel() >= index.numel(), kOp, ": out has shape ", out.shape(),
                 ", it must have at least ", index.numel(), " elements");
  if (index.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, gather_scalars, x, index, out);
}

void sum_rows(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
              Tensor& out) {
  constexpr const char* kOp = "sum_rows";
  check_map(ctx, kOp, map, remote, local, out);
  check_rank(kOp, {"local", local}, 2);
  check_rank(kOp, {"remote", remote}, 2);
  check_shape(kOp, {"remote", remote}, {remote.dim(0), local.dim(1)});
  check_shape(kOp, {"out", out}, {map.dim(0), local.dim(1)});
  if (out.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, sum_rows, map, remote, local, out);
}

void pick_scalars(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
                  Tensor& out) {
  constexpr const char* kOp = "pick_scalars";
  check_map(ctx, kOp, map, remote, local, out);
  check_shape(kOp, {"out", out}, map.shape());
  if (out.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, pick_scalars, map, remote, local, out);
}

void zero_rows(Tensor& x, int64_t begin, int64_t end) {
  constexpr const char* kOp = "zero_rows";
  SPILLWAY_CHECK(x.defined(), kOp, ": x is undefined");
  SPILLWAY_CHECK(x.device() == Device::kCpu, kOp, ": x is on ", device_name(x.device()),
                 ", it must be on cpu");
  SPILLWAY_CHECK(x.shape().rank() >= 1 && 0 <= begin && begin <= end && end <= x.dim(0), kOp,
                 ": rows [", begin, ", ", end, ") of x ", x.shape());
  if (begin == end || x.numel() == 0) return;
  cpu::zero_rows(x, begin, end);
}

}  // namespace spillway::kernels
