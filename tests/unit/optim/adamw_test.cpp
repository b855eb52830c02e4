#include "spillway/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "small_model.h"
#include "spillway/core/rng.h"

namespace spillway::optim {
namespace {

// Weights are at most about 1 and take 12 steps: each rounds once, to 2^-24 relative, and the
// update (at most lr = 0.01 in size) carries a few more such errors.
constexpr double kWeightTolerance = 1e-6;
// Moments are short sums of rounded f32 terms of size 1.
constexpr double kMomentTolerance = 2e-6;
// One step from 0: a handful of f32 roundings of a number of size lr.
constexpr double kFirstStepTolerance = 1e-6;

double value_at(const Tensor& tensor, int64_t i) {
  return visit_float(tensor.dtype(), [&]<typename T>() {
    return static_cast<double>(static_cast<acc_t<T>>(tensor.data<T>()[i]));
  });
}

/// One element, in double, straight from algorithm 2 of Loshchilov and Hutter.
struct Reference {
  double master = 0.0, m = 0.0, v = 0.0;

  void step(const OptimConfig& c, double lr, double gradient, double decay, int64_t t) {
    m = c.beta1 * m + (1.0 - c.beta1) * gradient;
    v = c.beta2 * v + (1.0 - c.beta2) * gradient * gradient;
    const double m_hat = m / (1.0 - std::pow(c.beta1, static_cast<double>(t)));
    const double v_hat = v / (1.0 - std::pow(c.beta2, static_cast<double>(t)));
    master -= lr * (m_hat / (std::sqrt(v_hat) + c.eps) + decay * master);
  }
};

struct RunCase {
  std::string name;
  DType dtype = DType::kF32;
  double weight_decay = 0.0;
  double grad_scale = 1.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};

class AgainstReference : public testing::TestWithParam<RunCase> {};

TEST_P(AgainstReference, SeveralSteps) {
  const RunCase& c = GetParam();
  OptimConfig config;
  config.weight_decay = c.weight_decay;
  config.beta1 = c.beta1;
  config.beta2 = c.beta2;
  config.eps = c.eps;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, small_model(c.dtype), kModelSeed, 2, 1);
  AdamW adamw(ctx, store, alone.topology, config, false);
  std::vector<Reference> reference;
  for_each_element(store, 1, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    reference.push_back({.master = value_at(piece_of(adamw, p.spec.name).master, i)});
  });
  const Rng rng(11);
  for (int64_t t = 1; t <= 12; ++t) {
    const double lr = 0.01 / static_cast<double>(t);
    fill_gradients(store, 1, [&](int64_t position, int64_t i) {
      return static_cast<float>(rng.normal_at(static_cast<uint64_t>((t * 8 + position) * 512 + i)));
    });
    size_t k = 0;
    for_each_element(store, 1, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
      const double decay = p.spec.name == "norm" ? 0.0 : c.weight_decay;
      reference[k++].step(config, lr, c.grad_scale * value_at(p.gradient, i), decay, t);
    });
    adamw.step(ctx, lr, c.grad_scale, t);
  }
  size_t k = 0;
  for_each_element(store, 1, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    const Reference& r = reference[k++];
    const std::string& name = p.spec.name;
    ASSERT_NEAR(value_at(piece_of(adamw, name).master, i), r.master, kWeightTolerance)
        << name << " " << i;
    ASSERT_NEAR(value_at(piece_of(adamw, name).m, i), r.m, kMomentTolerance) << name << " " << i;
    ASSERT_NEAR(value_at(piece_of(adamw, name).v, i), r.v, kMomentTolerance) << name << " " << i;
    const auto master = static_cast<float>(value_at(piece_of(adamw, name).master, i));
    const double rounded = c.dtype == DType::kF32 ? master : static_cast<float>(bf16(master));
    ASSERT_EQ(value_at(p.value, i), rounded) << name << " " << i;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Runs, AgainstReference,
    testing::Values(RunCase{"f32_no_decay", DType::kF32, 0.0},
                    RunCase{"f32_decay", DType::kF32, 0.1},
                    RunCase{"f32_strong_decay", DType::kF32, 10.0},
                    RunCase{"f32_clipped", DType::kF32, 0.1, 0.125},
                    RunCase{"f32_no_momentum", DType::kF32, 0.1, 1.0, 0.0},
                    RunCase{"f32_long_memory", DType::kF32, 0.1, 1.0, 0.9, 0.999},
                    RunCase{"f32_large_eps", DType::kF32, 0.1, 1.0, 0.9, 0.95, 0.5},
                    RunCase{"bf16_no_decay", DType::kBF16, 0.0},
                    RunCase{"bf16_decay", DType::kBF16, 0.1},
                    RunCase{"bf16_clipped", DType::kBF16, 0.1, 0.125}),
    [](const auto& test) { return test.param.name; });

std::vector<nn::ParameterSpec> one_parameter(nn::Init::Kind kind, DType dtype = DType::kF32) {
  std::vector<nn::ParameterSpec> specs{spec_of("w", {3, 5}, dtype)};
  specs[0].init.kind = kind;
  return specs;
}

class FirstStep : public testing::TestWithParam<int> {};

TEST_P(FirstStep, MovesByLrWhateverTheGradientsScale) {
  const double scale = std::pow(10.0, GetParam());
  OptimConfig config;
  config.eps = 1e-30;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, one_parameter(nn::Init::Kind::kZeros), 1, 1, 0);
  AdamW adamw(ctx, store, alone.topology, config, false);
  fill_gradients(store, 0, [&](int64_t, int64_t i) {
    return static_cast<float>((i % 2 == 0 ? 1.0 : -1.0) * scale * static_cast<double>(i + 1));
  });
  constexpr double kLr = 0.03;
  adamw.step(ctx, kLr, 1.0, 1);
  for (int64_t i = 0; i < 15; ++i) {
    const double expected = i % 2 == 0 ? -kLr : kLr;
    EXPECT_NEAR(value_at(store.at("w").value, i), expected, kLr * kFirstStepTolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(PowersOfTen, FirstStep, testing::Values(-9, -3, 0, 4, 9),
                         [](const auto& test) {
                           const std::string sign = test.param < 0 ? "minus" : "";
                           return sign + std::to_string(std::abs(test.param));
                         });

TEST(AdamW, EpsIsAddedAfterTheRootAndTheBiasCorrection) {
  OptimConfig config;
  config.eps = 2.0;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, one_parameter(nn::Init::Kind::kZeros), 1, 1, 0);
  AdamW adamw(ctx, store, alone.topology, config, false);
  fill_gradients(store, 0, [](int64_t, int64_t) { return 2.0F; });
  adamw.step(ctx, 0.5, 1.0, 1);
  EXPECT_NEAR(value_at(store.at("w").value, 0), -0.25, kFirstStepTolerance);
}

TEST(AdamW, GradScaleIsAFactorOnGradients) {
  OptimConfig config;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store_a(ctx, small_model(), kModelSeed, 1, 0);
  nn::ParameterStore store_b(ctx, small_model(), kModelSeed, 1, 0);
  AdamW a(ctx, store_a, alone.topology, config, false);
  AdamW b(ctx, store_b, alone.topology, config, false);
  fill_gradients(store_a, 0, [](int64_t p, int64_t i) { return static_cast<float>(p + i % 7); });
  fill_gradients(store_b, 0,
                 [](int64_t p, int64_t i) { return 4.0F * static_cast<float>(p + i % 7); });
  a.step(ctx, 0.01, 1.0, 1);
  b.step(ctx, 0.01, 0.25, 1);
  for_each_element(store_a, 0, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    ASSERT_EQ(value_at(p.value, i), value_at(store_b.at(p.spec.name).value, i)) << p.spec.name;
  });
}

TEST(AdamW, StepLeavesGradientsAlone) {
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, small_model(), kModelSeed, 1, 0);
  AdamW adamw(ctx, store, alone.topology, {}, false);
  const auto f = [](int64_t p, int64_t i) { return static_cast<float>(p * 100 + i); };
  fill_gradients(store, 0, f);
  adamw.step(ctx, 0.01, 0.5, 1);
  for_each_element(store, 0, [&](nn::Parameter& p, int64_t position, int64_t i, int64_t) {
    ASSERT_EQ(value_at(p.gradient, i), f(position, i)) << p.spec.name;
  });
}

class Decay : public testing::TestWithParam<DType> {};

TEST_P(Decay, WithoutGradientsShrinksMatricesAndOnlyThem) {
  OptimConfig config;
  config.weight_decay = 0.5;
  constexpr double kLr = 0.125;
  constexpr int kSteps = 4;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, small_model(GetParam()), kModelSeed, 1, 0);
  AdamW adamw(ctx, store, alone.topology, config, false);
  std::vector<double> start;
  for_each_element(store, 0, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    start.push_back(value_at(piece_of(adamw, p.spec.name).master, i));
  });
  for (int t = 1; t <= kSteps; ++t) adamw.step(ctx, kLr, 1.0, t);
  const double shrunk = std::pow(1.0 - kLr * config.weight_decay, kSteps);
  size_t k = 0;
  for_each_element(store, 0, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    const double factor = p.spec.decay ? shrunk : 1.0;
    const double tolerance = p.spec.decay ? kWeightTolerance * std::abs(start[k]) : 0.0;
    ASSERT_NEAR(value_at(piece_of(adamw, p.spec.name).master, i), start[k] * factor, tolerance)
        << p.spec.name << " " << i;
    ++k;
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Decay, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(AdamW, Bf16StepsBelowTheRoundingAddUpInTheMaster) {
  // bf16 has nothing between 1 - 2^-8 and 1: a step of 2^-12 is lost in the value, not in the
  // master. 9 steps of it pass the middle, 7 do not.
  constexpr double kLr = 1.0 / 4096;
  OptimConfig config;
  config.weight_decay = 0.0;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, one_parameter(nn::Init::Kind::kOnes, DType::kBF16), 1, 1, 0);
  AdamW adamw(ctx, store, alone.topology, config, false);
  fill_gradients(store, 0, [](int64_t, int64_t) { return 3.0F; });
  for (int t = 1; t <= 7; ++t) adamw.step(ctx, kLr, 1.0, t);
  EXPECT_EQ(value_at(store.at("w").value, 0), 1.0);
  for (int t = 8; t <= 9; ++t) adamw.step(ctx, kLr, 1.0, t);
  EXPECT_EQ(value_at(store.at("w").value, 0), 1.0 - 1.0 / 256);
  EXPECT_NEAR(value_at(piece_of(adamw, "w").master, 0), 1.0 - 9 * kLr, kWeightTolerance);
}

TEST(AdamW, ADistantGapOrNeighbourIsNotTouched) {
  // Zero gradients everywhere but in one parameter: the others, packed beside it, stay.
  OptimConfig config;
  config.weight_decay = 0.0;
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, small_model(), kModelSeed, 1, 0);
  nn::ParameterStore untouched(ctx, small_model(), kModelSeed, 1, 0);
  AdamW adamw(ctx, store, alone.topology, config, false);
  fill_gradients(store, 0, [](int64_t position, int64_t) { return position == 3 ? 1.0F : 0.0F; });
  adamw.step(ctx, 0.5, 1.0, 1);
  for_each_element(store, 0, [&](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    const double moved = value_at(p.value, i) - value_at(untouched.at(p.spec.name).value, i);
    if (p.spec.name == "router") {
      ASSERT_LT(moved, -0.4) << i;
    } else {
      ASSERT_EQ(moved, 0.0) << p.spec.name << " " << i;
    }
  });
}

}  // namespace
}  // namespace spillway::optim
