#include "spillway/ops/rope.h"

#include <gtest/gtest.h>

#include "op_test.h"
#include "spillway/kernels/rope.h"

namespace spillway::ops {
namespace {

class RopeGradient : public ::testing::TestWithParam<Shape> {};

TEST_P(RopeGradient, MatchesDifferences) {
  Context ctx;
  const Shape& shape = GetParam();
  constexpr int64_t kLongerTable = 3;
  Tensor cos = Tensor::empty(ctx, {shape[1] + kLongerTable, shape[3] / 2}, DType::kF64);
  Tensor sin = cos.clone(ctx);
  kernels::rope_table(100.0, cos, sin);
  EXPECT_TRUE(op_gradients_match(
      ctx, [&](Tape& tape, const Inputs& in) { return Inputs{rope(tape, in[0], cos, sin)}; },
      {{"x", random_tensor(ctx, shape, DType::kF64, 1)}}));
}

INSTANTIATE_TEST_SUITE_P(, RopeGradient,
                         ::testing::Values(Shape{0, 3, 2, 4}, Shape{1, 1, 1, 2}, Shape{2, 5, 3, 6}),
                         [](const auto& param) { return shape_label(param.param); });

}  // namespace
}  // namespace spillway::ops
