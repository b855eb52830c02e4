#include "spillway/ops/linear.h"

#include "spillway/kernels/elementwise.h"
#include "spillway/kernels/matmul.h"

namespace spillway::ops {

using autograd::Backward;

Variable linear(Tape& tape, const Variable& x, const Variable& w, std::optional<DType> out_dtype,
                std::string_view save_as) {
  Tensor y = tape.saved(save_as, [&] {
    Context& ctx = tape.ctx();
    Tensor result = Tensor::empty(ctx, {x.shape().rows(), w.dim(0)}, out_dtype.value_or(x.dtype()));
    kernels::matmul(ctx, {.a = x.value(), .b = w.value(), .c = result, .trans_b = true});
    return result;
  });
  return tape.record(
      "linear", std::move(y), {x, w}, [x_value = x.value(), w_value = w.value()](Backward& b) {
        Tensor dy = b.take_grad();
        if (dy.dtype() != x_value.dtype()) {
          Tensor cast = Tensor::empty(b.ctx(), dy.shape(), x_value.dtype());
          kernels::cast(b.ctx(), dy, cast);
          dy = std::move(cast);
        }
        if (b.wants(0)) {
          Tensor dx = Tensor::empty(b.ctx(), x_value.shape(), x_value.dtype());
          kernels::matmul(b.ctx(), {.a = dy, .b = w_value, .c = dx});
          b.give(0, std::move(dx));
        }
        if (b.wants(1)) {
          kernels::matmul(
              b.ctx(),
              {.a = dy, .b = x_value, .c = b.accumulator(1), .trans_a = true, .accumulate = true});
        }
      });
}

}  // namespace spillway::ops
