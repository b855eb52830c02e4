#include "spillway/ops/attention.h"

#include <cmath>

#include "spillway/kernels/attention.h"
#include "spillway/ops/save_names.h"

namespace spillway::ops {

using autograd::Backward;

Variable attention(Tape& tape, const Variable& q, const Variable& k, const Variable& v) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.dim(3)));
  const auto [out, lse] = tape.saved(kSaveAttention, [&] {
    Context& ctx = tape.ctx();
    Tensor result = Tensor::empty(ctx, q.shape(), q.dtype());
    Tensor log_sum =
        Tensor::empty(ctx, {q.dim(0), q.dim(2), q.dim(1)}, accumulator_dtype(q.dtype()));
    kernels::attention(ctx, {.q = q.value(),
                             .k = k.value(),
                             .v = v.value(),
                             .out = result,
                             .lse = log_sum,
                             .scale = scale});
    return std::pair(result, log_sum);
  });
  return tape.record(
      "attention", out, {q, k, v},
      [q = q.value(), k = k.value(), v = v.value(), out = out, lse = lse, scale](Backward& b) {
        Tensor dq = Tensor::empty(b.ctx(), q.shape(), q.dtype());
        Tensor dk = Tensor::empty(b.ctx(), k.shape(), k.dtype());
        Tensor dv = Tensor::empty(b.ctx(), v.shape(), v.dtype());
        kernels::attention_backward(b.ctx(), {.dout = b.grad(),
                                              .q = q,
                                              .k = k,
                                              .v = v,
                                              .out = out,
                                              .lse = lse,
                                              .dq = dq,
                                              .dk = dk,
                                              .dv = dv,
                                              .scale = scale});
        b.give(0, std::move(dq));
        b.give(1, std::move(dk));
        b.give(2, std::move(dv));
      });
}

}  // namespace spillway::ops
