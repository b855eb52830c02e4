#include "spillway/kernels/grouped_matmul.h"

#include "checks.h"
#include "cpu/grouped_matmul.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

/// Rows [C, width_n] and [C, width_k] with weights [G, width_n, width_k] of as many groups.
void check(const Context& ctx, const char* op, const NamedTensor& rows_n, const NamedTensor& rows_k,
           const NamedTensor& weights, RowGroups groups) {
  check_tensors(ctx, op, {rows_n, rows_k, weights});
  check_floating(op, rows_k);
  check_dtype(op, rows_n, rows_k.tensor.dtype());
  check_rank(op, rows_k, 2);
  check_rank(op, weights, 3);
  const Shape& w = weights.tensor.shape();
  SPILLWAY_CHECK(w[0] == groups.size(), op, ": ", weights.name, " has shape ", w, " for ",
                 groups.size(), " groups of rows");
  const int64_t capacity = rows_k.tensor.dim(0);
  check_shape(op, rows_k, {capacity, w[2]});
  check_shape(op, rows_n, {capacity, w[1]});
  check_row_groups(op, groups, capacity);
}

bool nothing_to_do(RowGroups groups, const Tensor& out) {
  if (out.numel() == 0) return true;
  for (const int64_t rows : groups.rows) {
    if (rows > 0) return false;
  }
  return true;
}

}  // namespace

void grouped_matmul(Context& ctx, const Tensor& x, const Tensor& w, RowGroups groups, Tensor& y) {
  constexpr const char* kOp = "grouped_matmul";
  check(ctx, kOp, {"y", y}, {"x", x}, {"w", w}, groups);
  check_dtype(kOp, {"w", w}, x.dtype());
  if (nothing_to_do(groups, y)) return;
  SPILLWAY_DISPATCH(ctx, grouped_matmul, x, w, groups, y);
}

void grouped_matmul_dgrad(Context& ctx, const Tensor& dy, const Tensor& w, RowGroups groups,
                          Tensor& dx) {
  constexpr const char* kOp = "grouped_matmul_dgrad";
  check(ctx, kOp, {"dy", dy}, {"dx", dx}, {"w", w}, groups);
  check_dtype(kOp, {"w", w}, dy.dtype());
  if (nothing_to_do(groups, dx)) return;
  SPILLWAY_DISPATCH(ctx, grouped_matmul_dgrad, dy, w, groups, dx);
}

void grouped_matmul_wgrad(Context& ctx, const Tensor& dy, const Tensor& x, RowGroups groups,
                          Tensor& dw) {
  constexpr const char* kOp = "grouped_matmul_wgrad";
  check(ctx, kOp, {"dy", dy}, {"x", x}, {"dw", dw}, groups);
  check_dtype(kOp, {"dw", dw}, accumulator_dtype(x.dtype()));
  if (nothing_to_do(groups, dw)) return;
  SPILLWAY_DISPATCH(ctx, grouped_matmul_wgrad, dy, x, groups, dw);
}

}  // namespace spillway::kernels
