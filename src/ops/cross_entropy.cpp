#include "spillway/ops/cross_entropy.h"

#include "spillway/kernels/cross_entropy.h"
#include "spillway/ops/basic.h"

namespace spillway::ops {

using autograd::Backward;

CrossEntropyResult cross_entropy(Tape& tape, const Variable& logits, const Tensor& targets,
                                 double scale) {
  Context& ctx = tape.ctx();
  const DType acc = accumulator_dtype(logits.dtype());
  Tensor row_loss = Tensor::empty(ctx, {logits.dim(0)}, acc);
  Tensor lse = Tensor::empty(ctx, {logits.dim(0)}, acc);
  kernels::cross_entropy(ctx, logits.value(), targets, row_loss, lse);

  double sum = 0.0;
  visit_float(acc, [&]<typename T>() {
    for (const T value : row_loss.span<T>()) sum += static_cast<double>(acc_t<T>(value));
  });
  Variable result = tape.record(
      "cross_entropy", scalar_tensor(ctx, acc, scale * sum), {logits},
      [logits = logits.value(), targets, lse, scale](Backward& b) {
        Tensor dlogits = Tensor::empty(b.ctx(), logits.shape(), logits.dtype());
        kernels::cross_entropy_backward(b.ctx(), {.logits = logits,
                                                  .targets = targets,
                                                  .lse = lse,
                                                  .scale = scale * scalar_value(b.grad()),
                                                  .dlogits = dlogits});
        b.give(0, std::move(dlogits));
      });
  return {std::move(result), sum};
}

}  // namespace spillway::ops
