#pragma once
// What the tests of ops share.

#include <gtest/gtest.h>

#include "spillway/autograd/tape.h"
#include "support/op_gradient_check.h"

namespace spillway::ops {

using spillway::testing::op_gradients_match;
using spillway::testing::OpInput;
using spillway::testing::random_tensor;
using spillway::testing::same_bytes;
using spillway::testing::tensor_of;
using Inputs = std::vector<autograd::Variable>;

inline Tensor f64(Context& ctx, Shape shape, uint64_t seed, double deviation = 1.0) {
  return random_tensor(ctx, shape, DType::kF64, seed, deviation);
}

inline autograd::Variable leaf(Context& ctx, const std::string& name, const Tensor& value) {
  return autograd::Variable::leaf(
      name, value, Tensor::zeros(ctx, value.shape(), accumulator_dtype(value.dtype())));
}

/// The name of a case that has a `label`.
inline constexpr auto kLabel = [](const auto& info) { return std::string(info.param.label); };

/// "2x3x4".
inline std::string shape_label(const Shape& shape) {
  std::string label;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i > 0) label += "x";
    label += std::to_string(shape[i]);
  }
  return label;
}

}  // namespace spillway::ops
