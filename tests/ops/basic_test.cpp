#include "spillway/ops/basic.h"

#include <gtest/gtest.h>

#include "op_test.h"

namespace spillway::ops {
namespace {

class ShapeGradient : public ::testing::TestWithParam<Shape> {};

TEST_P(ShapeGradient, OfAdd) {
  Context ctx;
  EXPECT_TRUE(op_gradients_match(
      ctx, [](Tape& tape, const Inputs& in) { return Inputs{add(tape, in[0], in[1])}; },
      {{"a", f64(ctx, GetParam(), 1)}, {"b", f64(ctx, GetParam(), 2)}}));
}

TEST_P(ShapeGradient, OfAddToItself) {
  Context ctx;
  EXPECT_TRUE(op_gradients_match(
      ctx, [](Tape& tape, const Inputs& in) { return Inputs{add(tape, in[0], in[0])}; },
      {{"a", f64(ctx, GetParam(), 1)}}));
}

TEST_P(ShapeGradient, OfReshape) {
  Context ctx;
  const int64_t n = GetParam().numel();
  EXPECT_TRUE(op_gradients_match(ctx,
                                 [n](Tape& tape, const Inputs& in) {
                                   return Inputs{reshape(tape, in[0], {1, n, 1})};
                                 },
                                 {{"x", f64(ctx, GetParam(), 1)}}));
}

TEST_P(ShapeGradient, OfAResidualChain) {
  Context ctx;
  EXPECT_TRUE(op_gradients_match(ctx,
                                 [](Tape& tape, const Inputs& in) {
                                   const Variable h = add(tape, in[0], add(tape, in[1], in[0]));
                                   return Inputs{add(tape, h, reshape(tape, h, h.shape()))};
                                 },
                                 {{"a", f64(ctx, GetParam(), 1)}, {"b", f64(ctx, GetParam(), 2)}}));
}

INSTANTIATE_TEST_SUITE_P(, ShapeGradient,
                         ::testing::Values(Shape{0, 4}, Shape{1}, Shape{3, 5}, Shape{2, 1, 3}),
                         [](const auto& param) { return shape_label(param.param); });

class WeightedSumGradient : public ::testing::TestWithParam<int> {};

TEST_P(WeightedSumGradient, MatchesDifferences) {
  Context ctx;
  std::vector<OpInput> inputs;
  std::vector<double> weights;
  for (int i = 0; i < GetParam(); ++i) {
    inputs.push_back({str("term", i), f64(ctx, {1}, static_cast<uint64_t>(i))});
    weights.push_back(0.5 + i);
  }
  EXPECT_TRUE(op_gradients_match(
      ctx, [&](Tape& tape, const Inputs& in) { return Inputs{weighted_sum(tape, in, weights)}; },
      inputs));
}

INSTANTIATE_TEST_SUITE_P(, WeightedSumGradient, ::testing::Values(1, 2, 5),
                         [](const auto& param) { return "terms" + std::to_string(param.param); });

TEST(WeightedSum, OfATermTwiceAddsItsWeights) {
  Context ctx;
  EXPECT_TRUE(op_gradients_match(
      ctx,
      [](Tape& tape, const Inputs& in) {
        return Inputs{weighted_sum(tape, std::vector{in[0], in[0]}, std::vector{0.25, 3.0})};
      },
      {{"x", f64(ctx, {1}, 1)}}));
}

TEST(WeightedSum, NeedsAsManyWeightsAsTerms) {
  Context ctx;
  Tape tape(ctx);
  const Variable x{f64(ctx, {1}, 1)};
  EXPECT_THROW(weighted_sum(tape, std::vector{x}, std::vector{1.0, 2.0}), Error);
  EXPECT_THROW(weighted_sum(tape, {}, {}), Error);
}

}  // namespace
}  // namespace spillway::ops
