#include "spillway/ops/grouped_linear.h"

#include "spillway/kernels/grouped_matmul.h"

namespace spillway::ops {

using autograd::Backward;

Variable grouped_linear(Tape& tape, const Variable& x, const Variable& w, const ZonesPtr& zones,
                        std::string_view save_as) {
  Tensor y = tape.saved(save_as, [&] {
    // Rows of a receive buffer stay rows of it, whatever their width.
    Tensor result = Tensor::empty(tape.ctx(), {x.dim(0), w.dim(1)}, x.dtype(), x.value().purpose());
    kernels::grouped_matmul(tape.ctx(), x.value(), w.value(), zones->groups(), result);
    return result;
  });
  return tape.record(
      "grouped_linear", std::move(y), {x, w},
      [x_value = x.value(), w_value = w.value(), zones](Backward& b) {
        const Tensor& dy = b.grad();
        if (b.wants(0)) {
          Tensor dx = Tensor::empty(b.ctx(), x_value.shape(), x_value.dtype(), x_value.purpose());
          kernels::grouped_matmul_dgrad(b.ctx(), dy, w_value, zones->groups(), dx);
          b.give(0, std::move(dx));
        }
        if (b.wants(1)) {
          kernels::grouped_matmul_wgrad(b.ctx(), dy, x_value, zones->groups(), b.accumulator(1));
        }
      });
}

}  // namespace spillway::ops
