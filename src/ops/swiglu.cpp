#include "spillway/ops/swiglu.h"

#include "spillway/kernels/swiglu.h"
#include "spillway/ops/save_names.h"

namespace spillway::ops {

using autograd::Backward;

Variable swiglu(Tape& tape, const Variable& x, const Variable& row_scale, const ZonesPtr& zones) {
  const Tensor scale = row_scale.defined() ? row_scale.value() : Tensor();
  const Tensor y = tape.saved(kSaveExpertAct, [&] {
    Tensor result =
        Tensor::empty(tape.ctx(), {x.dim(0), x.dim(1) / 2}, x.dtype(), x.value().purpose());
    kernels::swiglu(tape.ctx(),
                    {.x = x.value(), .row_scale = scale, .groups = zones->groups(), .y = result});
    return result;
  });
  return tape.record("swiglu", y, {x, row_scale}, [x_value = x.value(), scale, zones](Backward& b) {
    Tensor dx = Tensor::empty(b.ctx(), x_value.shape(), x_value.dtype(), x_value.purpose());
    Tensor d_scale;
    if (scale.defined())
      d_scale = Tensor::empty(b.ctx(), scale.shape(), scale.dtype(), scale.purpose());
    kernels::swiglu_backward(b.ctx(), {.dy = b.grad(),
                                       .x = x_value,
                                       .row_scale = scale,
                                       .groups = zones->groups(),
                                       .dx = dx,
                                       .d_row_scale = d_scale});
    b.give(0, std::move(dx));
    b.give(1, std::move(d_scale));
  });
}

}  // namespace spillway::ops
