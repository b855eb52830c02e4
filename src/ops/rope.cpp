#include "spillway/ops/rope.h"

#include "spillway/kernels/rope.h"

namespace spillway::ops {

using autograd::Backward;

Variable rope(Tape& tape, const Variable& x, const Tensor& cos, const Tensor& sin) {
  Tensor y = Tensor::empty(tape.ctx(), x.shape(), x.dtype());
  kernels::rope(tape.ctx(), {.x = x.value(), .cos = cos, .sin = sin, .y = y});
  return tape.record("rope", std::move(y), {x}, [cos, sin](Backward& b) {
    const Tensor dy = b.take_grad();
    Tensor dx = Tensor::empty(b.ctx(), dy.shape(), dy.dtype());
    kernels::rope(b.ctx(), {.x = dy, .cos = cos, .sin = sin, .y = dx, .inverse = true});
    b.give(0, std::move(dx));
  });
}

}  // namespace spillway::ops
