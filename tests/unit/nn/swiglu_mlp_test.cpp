#include "spillway/nn/swiglu_mlp.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"
#include "support/parameter_gradient_check.h"

namespace spillway::nn {
namespace {

class SwigluMlpTest : public ::testing::TestWithParam<int64_t> {
 protected:
  static constexpr int64_t kHidden = 3, kFfn = 5;
  static std::vector<ParameterSpec> specs() {
    std::vector<ParameterSpec> all;
    SwigluMlp::append_specs(kHidden, kFfn, 0.01, "mlp.", DType::kF64, all);
    all.push_back({.name = "x", .shape = {GetParam(), kHidden}, .dtype = DType::kF64});
    return all;
  }
  Context ctx_;
  ParameterStore store_{ctx_, specs(), 1, 1, 0};
  SwigluMlp mlp_{"mlp.", store_};
};

TEST_P(SwigluMlpTest, GradientsMatchDifferences) {
  spillway::testing::randomise(store_, 0.7);
  EXPECT_TRUE(spillway::testing::parameter_gradients_match(ctx_, store_, [this](Tape& tape) {
    return spillway::testing::random_projection(tape, mlp_(tape, store_.at("x").variable));
  }));
}

TEST_P(SwigluMlpTest, IsDownOfSiluOfGateTimesUp) {
  spillway::testing::randomise(store_, 0.7);
  Tape tape(ctx_, false);
  const Tensor y = mlp_(tape, store_.at("x").variable).value();
  const double* const up = store_.at("mlp.gate_up_proj.weight").value.data<double>();
  const double* const down = store_.at("mlp.down_proj.weight").value.data<double>();
  const auto product = [](const double* a, const double* b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  };
  constexpr double kRounding = 1e-14;  // of sums of at most five terms of size one
  for (int64_t t = 0; t < GetParam(); ++t) {
    const double* const x = store_.at("x").value.data<double>() + t * kHidden;
    double act[kFfn];
    for (int64_t i = 0; i < kFfn; ++i) {
      const double gate = product(up + i * kHidden, x, kHidden);
      act[i] = gate / (1.0 + std::exp(-gate)) * product(up + (kFfn + i) * kHidden, x, kHidden);
    }
    for (int64_t h = 0; h < kHidden; ++h) {
      EXPECT_NEAR(y.data<double>()[t * kHidden + h], product(down + h * kFfn, act, kFfn),
                  kRounding);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, SwigluMlpTest, ::testing::Values(1, 4, 7),
                         [](const auto& param) { return "tokens" + std::to_string(param.param); });

TEST(SwigluMlpSpecs, PutGateAndUpIntoOneWeight) {
  std::vector<ParameterSpec> specs;
  SwigluMlp::append_specs(8, 12, 0.01, "mlp.", DType::kBF16, specs);
  ASSERT_EQ(specs.size(), 2U);
  EXPECT_EQ(specs[0].name, "mlp.gate_up_proj.weight");
  EXPECT_EQ(specs[0].shape, (Shape{24, 8}));
  EXPECT_EQ(specs[1].name, "mlp.down_proj.weight");
  EXPECT_EQ(specs[1].shape, (Shape{8, 12}));
  EXPECT_EQ(specs[1].init.std, 0.01);
}

}  // namespace
}  // namespace spillway::nn
