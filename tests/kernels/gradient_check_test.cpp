#include "support/gradient_check.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"

namespace spillway::testing {
namespace {

double sum_of_cubes(const Tensor& x) {
  double sum = 0.0;
  for (const double value : x.span<double>()) sum += value * value * value;
  return sum;
}

Tensor cubes_gradient(Context& ctx, const Tensor& x) {
  Tensor gradient = Tensor::empty(ctx, x.shape(), DType::kF64);
  for (int64_t i = 0; i < x.numel(); ++i) {
    gradient.data<double>()[i] = 3.0 * x.data<double>()[i] * x.data<double>()[i];
  }
  return gradient;
}

class GradientCheck : public ::testing::Test {
 protected:
  Context ctx_;
  Tensor x_ = random_tensor(ctx_, {3, 4}, DType::kF64, 1);
  Tensor gradient_ = cubes_gradient(ctx_, x_);
};

TEST_F(GradientCheck, AcceptsTheRightGradientAndRestoresX) {
  const Tensor before = x_.clone(ctx_);
  EXPECT_TRUE(gradient_matches(sum_of_cubes, x_, gradient_));
  EXPECT_TRUE(same_bytes(before, x_));
}

TEST_F(GradientCheck, RefusesOneElementThatIsOffByAFewParts) {
  // The largest element: an error in one far below the others is measured against them.
  int64_t worst = 0;
  for (int64_t i = 0; i < gradient_.numel(); ++i) {
    if (gradient_.data<double>()[i] > gradient_.data<double>()[worst]) worst = i;
  }
  gradient_.data<double>()[worst] *= 1.0 + 5e-6;
  EXPECT_FALSE(gradient_matches(sum_of_cubes, x_, gradient_));
}

TEST_F(GradientCheck, RefusesAWrongSign) {
  gradient_.data<double>()[11] *= -1.0;
  EXPECT_FALSE(gradient_matches(sum_of_cubes, x_, gradient_));
}

TEST_F(GradientCheck, RefusesAMissingElement) {
  gradient_.data<double>()[0] = 0.0;
  EXPECT_FALSE(gradient_matches(sum_of_cubes, x_, gradient_));
}

TEST_F(GradientCheck, RefusesNaN) {
  gradient_.data<double>()[5] = std::nan("");
  EXPECT_FALSE(gradient_matches(sum_of_cubes, x_, gradient_));
}

TEST_F(GradientCheck, RefusesAnAllZeroGradient) {
  gradient_.zero();
  EXPECT_FALSE(gradient_matches([](const Tensor&) { return 1.0; }, x_, gradient_));
}

TEST_F(GradientCheck, RefusesAnotherShape) {
  EXPECT_FALSE(gradient_matches(sum_of_cubes, x_, gradient_.view({4, 3})));
}

}  // namespace
}  // namespace spillway::testing
