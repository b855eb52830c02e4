#pragma once
// Elementwise ops in f64, written out here so that the tape is tested without the module `ops`.

#include <string>
#include <vector>

#include "spillway/autograd/tape.h"
#include "support/kernel_test.h"

namespace spillway::autograd::testing {

using spillway::testing::random_tensor;
using spillway::testing::same_bytes;
using spillway::testing::throws_with;
using spillway::testing::to_doubles;

inline Tensor filled(Context& ctx, Shape shape, double value) {
  Tensor tensor = Tensor::empty(ctx, shape, DType::kF64);
  for (double& element : tensor.span<double>()) element = value;
  return tensor;
}

inline Variable leaf(Context& ctx, const std::string& name, const Tensor& value) {
  return Variable::leaf(name, value, Tensor::zeros(ctx, value.shape(), DType::kF64));
}

inline Tensor times(Context& ctx, const Tensor& a, const Tensor& b) {
  Tensor product = Tensor::empty(ctx, a.shape(), DType::kF64);
  for (int64_t i = 0; i < a.numel(); ++i) {
    product.data<double>()[i] = a.data<double>()[i] * b.data<double>()[i];
  }
  return product;
}

inline Variable multiply(Tape& tape, const Variable& a, const Variable& b) {
  return tape.record("multiply", times(tape.ctx(), a.value(), b.value()), {a, b},
                     [a = a.value(), b = b.value()](Backward& back) {
                       if (back.wants(0)) back.give(0, times(back.ctx(), back.grad(), b));
                       if (back.wants(1)) back.give(1, times(back.ctx(), back.grad(), a));
                     });
}

inline Variable scale(Tape& tape, const Variable& x, double factor) {
  const Tensor factors = filled(tape.ctx(), x.shape(), factor);
  return tape.record("scale", times(tape.ctx(), x.value(), factors), {x},
                     [factors](Backward& b) { b.give(0, times(b.ctx(), b.grad(), factors)); });
}

/// a + b whose backward gives ONE tensor to both inputs.
inline Variable plus(Tape& tape, const Variable& a, const Variable& b) {
  Tensor sum = a.value().clone(tape.ctx());
  for (int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] += b.value().data<double>()[i];
  return tape.record("plus", std::move(sum), {a, b}, [](Backward& back) {
    back.give(0, back.grad());
    back.give(1, back.take_grad());
  });
}

inline Variable sum(Tape& tape, const Variable& x) {
  double total = 0.0;
  for (const double value : x.value().span<double>()) total += value;
  return tape.record("sum", filled(tape.ctx(), {1}, total), {x}, [shape = x.shape()](Backward& b) {
    b.give(0, filled(b.ctx(), shape, b.grad().data<double>()[0]));
  });
}

/// Bytes in use for any purpose.
inline int64_t bytes_in_use(Context& ctx) { return ctx.allocator()->total().current_bytes; }

/// The names that `on_leaf_ready` reported, in order.
using Ready = std::vector<std::string>;
inline void report_ready_leaves(Tape& tape, Ready& ready) {
  tape.on_leaf_ready([&ready](const std::string& name) { ready.push_back(name); });
}

}  // namespace spillway::autograd::testing
