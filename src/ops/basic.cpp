#include "spillway/ops/basic.h"

#include "spillway/kernels/elementwise.h"

namespace spillway::ops {

using autograd::Backward;

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  // One tensor for two gradients: the tape copies before it would write to shared memory.
  auto backward = [](Backward& back) {
    back.give(0, back.grad());
    back.give(1, back.take_grad());
  };
  if (tape.recomputing() && !(a.has_value() && b.has_value())) {
    return tape.record_without_value("add", a.shape(), a.dtype(), {a, b}, backward);
  }
  Tensor sum = Tensor::empty(tape.ctx(), a.shape(), a.dtype());
  kernels::add(tape.ctx(), a.value(), b.value(), sum);
  return tape.record("add", std::move(sum), {a, b}, backward);
}

Variable reshape(Tape& tape, const Variable& x, Shape shape) {
  return tape.record("reshape", x.value().view(shape), {x},
                     [from = x.shape()](Backward& b) { b.give(0, b.take_grad().view(from)); });
}

Variable weighted_sum(Tape& tape, std::span<const Variable> terms,
                      std::span<const double> weights) {
  SPILLWAY_CHECK(!terms.empty() && terms.size() == weights.size(), terms.size(), " terms and ",
                 weights.size(), " weights");
  double total = 0.0;
  for (size_t i = 0; i < terms.size(); ++i) total += weights[i] * scalar_value(terms[i].value());
  return tape.record("weighted_sum", scalar_tensor(tape.ctx(), terms.front().dtype(), total),
                     {terms.begin(), terms.end()},
                     [factors = std::vector<double>(weights.begin(), weights.end())](Backward& b) {
                       for (size_t i = 0; i < factors.size(); ++i) {
                         const int input = static_cast<int>(i);
                         if (!b.wants(input)) continue;
                         Tensor share = b.grad().clone(b.ctx());
                         kernels::scale_in_place(b.ctx(), factors[i], share);
                         b.give(input, std::move(share));
                       }
                     });
}

double scalar_value(const Tensor& x) {
  SPILLWAY_CHECK(x.numel() == 1, "the scalar of a tensor of ", x.shape());
  return visit_float(x.dtype(), [&]<typename T>() {
    return static_cast<double>(static_cast<acc_t<T>>(x.data<T>()[0]));
  });
}

Tensor scalar_tensor(Context& ctx, DType dtype, double value) {
  Tensor x = Tensor::empty(ctx, {1}, dtype);
  visit_float(dtype, [&]<typename T>() { x.data<T>()[0] = T(static_cast<acc_t<T>>(value)); });
  return x;
}

}  // namespace spillway::ops
