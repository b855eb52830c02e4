#include "spillway/ops/rms_norm.h"

#include "spillway/kernels/rms_norm.h"

namespace spillway::ops {

using autograd::Backward;

Variable rms_norm(Tape& tape, const Variable& x, const Variable& w, double eps) {
  Context& ctx = tape.ctx();
  Tensor y = Tensor::empty(ctx, x.shape(), x.dtype());
  Tensor inv_rms = Tensor::empty(ctx, {x.shape().rows()}, accumulator_dtype(x.dtype()));
  kernels::rms_norm(ctx, x.value(), w.value(), eps, y, inv_rms);
  return tape.record("rms_norm", std::move(y), {x, w},
                     [x_value = x.value(), w_value = w.value(), inv_rms](Backward& b) {
                       Tensor dx = Tensor::empty(b.ctx(), x_value.shape(), x_value.dtype());
                       Tensor unused;
                       if (!b.wants(1))
                         unused = Tensor::zeros(b.ctx(), w_value.shape(), inv_rms.dtype());
                       kernels::rms_norm_backward(b.ctx(),
                                                  {.dy = b.grad(),
                                                   .x = x_value,
                                                   .w = w_value,
                                                   .inv_rms = inv_rms,
                                                   .dx = dx,
                                                   .dw = b.wants(1) ? b.accumulator(1) : unused});
                       b.give(0, std::move(dx));
                     });
}

}  // namespace spillway::ops
