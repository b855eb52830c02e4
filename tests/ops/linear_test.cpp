#include "spillway/ops/linear.h"

#include <gtest/gtest.h>

#include "op_test.h"

namespace spillway::ops {
namespace {

struct LinearCase {
  const char* label;
  Shape x, w;
};
class LinearGradient : public ::testing::TestWithParam<LinearCase> {};

TEST_P(LinearGradient, MatchesDifferences) {
  Context ctx;
  EXPECT_TRUE(op_gradients_match(
      ctx, [](Tape& tape, const Inputs& in) { return Inputs{linear(tape, in[0], in[1])}; },
      {{"x", f64(ctx, GetParam().x, 1)},
       {.name = "w", .value = f64(ctx, GetParam().w, 2), .zero = GetParam().x.rows() == 0}}));
}

INSTANTIATE_TEST_SUITE_P(, LinearGradient,
                         ::testing::Values(LinearCase{"no_rows", {0, 3}, {2, 3}},
                                           LinearCase{"one", {1, 1}, {1, 1}},
                                           LinearCase{"odd", {3, 5}, {7, 5}},
                                           LinearCase{"tall", {17, 2}, {3, 2}},
                                           LinearCase{"square", {8, 8}, {8, 8}},
                                           LinearCase{"batched", {2, 3, 4}, {5, 4}}),
                         kLabel);

TEST(LinearDtype, LogitsOfBF16AreF32AndTheirGradientReturnsInBF16) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {6, 32}, DType::kBF16, 1);
  const Tensor w = random_tensor(ctx, {5, 32}, DType::kBF16, 2);
  const Variable x_leaf = Variable::leaf("x", x, Tensor::zeros(ctx, x.shape(), DType::kF32));
  const Variable w_leaf = Variable::leaf("w", w, Tensor::zeros(ctx, w.shape(), DType::kF32));
  Tape tape(ctx);
  const Variable y = linear(tape, x_leaf, w_leaf, DType::kF32);
  EXPECT_EQ(y.dtype(), DType::kF32);
  const Tensor dy = random_tensor(ctx, y.shape(), DType::kF32, 3);
  tape.backward(y, dy.clone(ctx));

  // dw = dy^T x in double; dy is rounded to bf16 (2^-9) before the products, whose errors are of
  // either sign.
  constexpr double kBf16Products = 1.0 / 256;
  double error = 0.0, size = 0.0;
  for (int64_t n = 0; n < 5; ++n) {
    for (int64_t k = 0; k < 32; ++k) {
      double wanted = 0.0;
      for (int64_t r = 0; r < 6; ++r) {
        wanted += testing::element(dy, r * 5 + n) * testing::element(x, r * 32 + k);
      }
      const double got = testing::element(w_leaf.grad(), n * 32 + k);
      error += (got - wanted) * (got - wanted);
      size += wanted * wanted;
    }
  }
  EXPECT_LE(std::sqrt(error), kBf16Products * std::sqrt(size));
}

TEST(LinearDtype, AnEmptyBatchLeavesTheWeightsGradientAlone) {
  Context ctx;
  Tensor gradient = f64(ctx, {2, 3}, 1);
  const Tensor before = gradient.clone(ctx);
  const Variable w = Variable::leaf("w", f64(ctx, {2, 3}, 2), gradient);
  Tape tape(ctx);
  const Variable y = linear(tape, Variable(f64(ctx, {0, 3}, 3)), w);
  tape.backward(y, Tensor::zeros(ctx, {0, 2}, DType::kF64));
  EXPECT_TRUE(same_bytes(gradient, before));
}

}  // namespace
}  // namespace spillway::ops
