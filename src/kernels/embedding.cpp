#include "spillway/kernels/embedding.h"

#include "checks.h"
#include "cpu/embedding.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

/// Rows `y` [R,H] for `tokens` [R] out of a table [V,H].
void check_operands(Context& ctx, const char* op, const Tensor& tokens, NamedTensor table,
                    NamedTensor y) {
  check_tensors(ctx, op, {{"tokens", tokens}, table, y});
  check_dtype(op, {"tokens", tokens}, DType::kI32);
  check_floating(op, y);
  check_rank(op, table, 2);
  check_numel(op, y, tokens.numel() * table.tensor.dim(1));
  SPILLWAY_CHECK(y.tensor.dim(-1) == table.tensor.dim(1), op, ": ", y.name, " has shape ",
                 y.tensor.shape(), ", its last dimension must be ", table.tensor.dim(1));
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& w, Tensor& y) {
  check_operands(ctx, "embedding", tokens, {"w", w}, {"y", y});
  check_dtype("embedding", {"w", w}, y.dtype());
  if (y.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, embedding, tokens, w, y);
}

void embedding_backward(Context& ctx, const Tensor& dy, const Tensor& tokens, Tensor& dw) {
  check_operands(ctx, "embedding_backward", tokens, {"dw", dw}, {"dy", dy});
  check_dtype("embedding_backward", {"dw", dw}, accumulator_dtype(dy.dtype()));
  if (dy.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, embedding_backward, dy, tokens, dw);
}

}  // namespace spillway::kernels
