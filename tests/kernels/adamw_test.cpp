#include "spillway/kernels/adamw.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::Guarded;
using testing::random_tensor;
using testing::same_bytes;
using testing::throws_with;

/// Five steps of fp32 with a handful of roundings each; moments are sums of few terms.
constexpr double kTolerance = 2e-6;

struct AdamWCase {
  const char* name;
  int64_t count;
  bool has_weight;
  DType weight_dtype;
  double decay;
  double grad_scale;
};
std::string case_name(const ::testing::TestParamInfo<AdamWCase>& info) { return info.param.name; }
void PrintTo(const AdamWCase& c, std::ostream* out) { *out << c.name; }

class AdamW : public ::testing::TestWithParam<AdamWCase> {};

TEST_P(AdamW, FiveStepsAgainstDouble) {
  Context ctx(Device::kCpu, 2);
  const AdamWCase& c = GetParam();
  constexpr double kLr = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;
  Guarded master(ctx, {c.count}, DType::kF32), m(ctx, {c.count}, DType::kF32);
  Guarded v(ctx, {c.count}, DType::kF32), w(ctx, {c.count}, c.weight_dtype);
  copy(random_tensor(ctx, {c.count}, DType::kF32, 1), master.tensor);
  m.tensor.zero();
  v.tensor.zero();
  Tensor none;
  Tensor& weight = c.has_weight ? w.tensor : none;
  std::vector<double> p = testing::to_doubles(master.tensor);
  std::vector<double> first(p.size(), 0.0), second(p.size(), 0.0);
  for (int64_t step = 1; step <= 5; ++step) {
    const Tensor grad =
        random_tensor(ctx, {c.count}, DType::kF32, 10 + static_cast<uint64_t>(step));
    adamw(ctx, {.master = master.tensor,
                .m = m.tensor,
                .v = v.tensor,
                .grad = grad,
                .weight = weight,
                .lr = kLr,
                .beta1 = kBeta1,
                .beta2 = kBeta2,
                .eps = kEps,
                .decay = c.decay,
                .grad_scale = c.grad_scale,
                .step = step});
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = c.grad_scale * testing::element(grad, static_cast<int64_t>(i));
      first[i] = kBeta1 * first[i] + (1 - kBeta1) * g;
      second[i] = kBeta2 * second[i] + (1 - kBeta2) * g * g;
      const double m_hat = first[i] / (1 - std::pow(kBeta1, step));
      const double v_hat = second[i] / (1 - std::pow(kBeta2, step));
      p[i] -= kLr * (m_hat / (std::sqrt(v_hat) + kEps) + c.decay * p[i]);
    }
  }
  EXPECT_TRUE(all_near(master.tensor, p, kTolerance, 1.0));
  EXPECT_TRUE(all_near(m.tensor, first, kTolerance, c.grad_scale));
  EXPECT_TRUE(all_near(v.tensor, second, kTolerance, c.grad_scale * c.grad_scale));
  if (c.has_weight) {
    // The rounded master, bit for bit.
    Tensor wanted = Tensor::empty(ctx, {c.count}, c.weight_dtype);
    for (int64_t i = 0; i < c.count; ++i) {
      testing::set_element(wanted, i, testing::element(master.tensor, i));
    }
    EXPECT_TRUE(same_bytes(weight, wanted));
  }
  EXPECT_TRUE(master.intact() && m.intact() && v.intact() && w.intact());
}

INSTANTIATE_TEST_SUITE_P(
    Grid, AdamW,
    ::testing::Values(AdamWCase{"empty", 0, true, DType::kBF16, 0.1, 1.0},
                      AdamWCase{"one_element", 1, true, DType::kBF16, 0.1, 1.0},
                      AdamWCase{"odd_bf16_weight", 1003, true, DType::kBF16, 0.1, 1.0},
                      AdamWCase{"odd_f32_weight", 1003, true, DType::kF32, 0.1, 1.0},
                      AdamWCase{"odd_no_weight", 1003, false, DType::kF32, 0.1, 1.0},
                      AdamWCase{"no_decay", 1024, true, DType::kBF16, 0.0, 1.0},
                      AdamWCase{"clipped", 1024, true, DType::kBF16, 0.1, 0.01},
                      AdamWCase{"many_shares", 40000, true, DType::kBF16, 0.1, 0.5}),
    case_name);

TEST(AdamWStep, ThreadsDoNotChangeTheBits) {
  Context one, two(Device::kCpu, 2);
  constexpr int64_t kCount = 50021;
  const Tensor grad = random_tensor(one, {kCount}, DType::kF32, 2);
  std::vector<Tensor> results;
  for (Context* ctx : {&one, &two}) {
    Tensor master = random_tensor(*ctx, {kCount}, DType::kF32, 3);
    Tensor m = random_tensor(*ctx, {kCount}, DType::kF32, 4);
    Tensor v = Tensor::zeros(*ctx, {kCount}, DType::kF32);
    Tensor weight = Tensor::zeros(*ctx, {kCount}, DType::kBF16);
    adamw(
        *ctx,
        {.master = master, .m = m, .v = v, .grad = grad, .weight = weight, .lr = 1e-2, .step = 7});
    results.insert(results.end(), {master, m, v, weight});
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bytes(results[i], results[i + 4])) << i;
}

TEST(AdamWStep, MasterMayBeTheWeight) {
  Context ctx;
  Tensor a = random_tensor(ctx, {100}, DType::kF32, 5), b = a.clone(ctx), none;
  const Tensor grad = random_tensor(ctx, {100}, DType::kF32, 6);
  Tensor m = Tensor::zeros(ctx, {100}, DType::kF32), v = m.clone(ctx);
  Tensor m2 = m.clone(ctx), v2 = m.clone(ctx);
  adamw(ctx, {.master = a, .m = m, .v = v, .grad = grad, .weight = a, .lr = 0.1, .decay = 0.1});
  adamw(ctx,
        {.master = b, .m = m2, .v = v2, .grad = grad, .weight = none, .lr = 0.1, .decay = 0.1});
  EXPECT_TRUE(same_bytes(a, b));
}

TEST(AdamWStep, FirstStepMovesByTheLearningRate) {
  // m / bias1 = g and v / bias2 = g^2 at step 1: each element moves by lr against its gradient.
  Context ctx;
  Tensor master = Tensor::zeros(ctx, {3}, DType::kF32), m = master.clone(ctx);
  Tensor v = master.clone(ctx), none;
  const Tensor grad = testing::tensor_of<float>(ctx, {3}, {2.0f, -0.5f, 1e-3f});
  adamw(ctx, {.master = master, .m = m, .v = v, .grad = grad, .weight = none, .lr = 0.25});
  EXPECT_TRUE(all_near(master, {-0.25, 0.25, -0.25}, 2e-5));
}

TEST(AdamWErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor a = Tensor::zeros(ctx, {4}, DType::kF32), b = Tensor::zeros(ctx, {3}, DType::kF32);
  Tensor h = Tensor::zeros(ctx, {4}, DType::kBF16), d = Tensor::zeros(ctx, {4}, DType::kF64), none;
  EXPECT_TRUE(throws_with<Error>(
      [&] { adamw(ctx, {.master = a, .m = b, .v = a, .grad = a, .weight = none}); },
      {"adamw: m has shape [3]", "4 elements"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { adamw(ctx, {.master = a, .m = a, .v = a, .grad = h, .weight = none}); },
      {"grad is bf16", "f32"}));
  EXPECT_TRUE(
      throws_with<Error>([&] { adamw(ctx, {.master = a, .m = a, .v = a, .grad = a, .weight = d}); },
                         {"weight is f64", "bf16"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { adamw(ctx, {.master = a, .m = a, .v = a, .grad = a, .weight = none, .step = 0}); },
      {"step is 0"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { adamw(ctx, {.master = a, .m = a, .v = a, .grad = a, .weight = none, .beta2 = 1.0}); },
      {"beta2 is 1"}));
}

}  // namespace
}  // namespace spillway::kernels
