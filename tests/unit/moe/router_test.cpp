#include "spillway/moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "spillway/ops/basic.h"
#include "support/kernel_test.h"
#include "support/parameter_gradient_check.h"

namespace spillway::moe {
namespace {

struct BalancedCase {
  int64_t tokens, experts, top_k;
};

class RouterTest : public ::testing::Test {
 protected:
  static constexpr int64_t kHidden = 4;
  ops::RouteResult routed(const MoeConfig& config, const Tensor& x) {
    std::vector<nn::ParameterSpec> specs;
    Router::append_specs(config, kHidden, "mlp.", x.dtype(), specs);
    nn::ParameterStore store(ctx_, specs, 1, 1, 0);
    if (zero_weight_) store.at("mlp.gate.weight").value.zero();
    Tape tape(ctx_, false);
    return Router(ctx_, config, "mlp.", store)(tape, Variable(x), {});
  }
  static std::vector<int64_t> counts(const ops::RouteResult& r, int64_t num_experts) {
    std::vector<int64_t> result(static_cast<size_t>(num_experts), 0);
    for (const int32_t id : r.topk_idx.span<int32_t>()) ++result[static_cast<size_t>(id)];
    return result;
  }
  Context ctx_;
  bool zero_weight_ = false;
};

class ForcedBalanced : public RouterTest, public ::testing::WithParamInterface<BalancedCase> {};

TEST_P(ForcedBalanced, CountsDifferByAtMostOneAndTokensHaveDistinctExperts) {
  const auto& c = GetParam();
  const MoeConfig config{
      .experts = c.experts, .top_k = c.top_k, .router = {.force = ForceRouting::kBalanced}};
  const Tensor x = spillway::testing::random_tensor(ctx_, {c.tokens, kHidden}, DType::kF32, 1);
  const ops::RouteResult r = routed(config, x);
  const auto count = counts(r, c.experts);
  const auto [least, most] = std::minmax_element(count.begin(), count.end());
  const bool divides = c.tokens * c.top_k % c.experts == 0;
  EXPECT_EQ(*most - *least, divides ? 0 : 1);
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto* ids = r.topk_idx.data<int32_t>() + t * c.top_k;
    EXPECT_EQ(std::set<int32_t>(ids, ids + c.top_k).size(), static_cast<size_t>(c.top_k));
  }
  if (divides) {
    constexpr double kRounding = 1e-5;  // of f32 probabilities
    EXPECT_NEAR(ops::scalar_value(r.aux_loss.value()), 1.0, kRounding);
  }
}

INSTANTIATE_TEST_SUITE_P(, ForcedBalanced,
                         ::testing::Values(BalancedCase{8, 4, 2}, BalancedCase{64, 64, 8},
                                           BalancedCase{5, 3, 2}, BalancedCase{7, 7, 7},
                                           BalancedCase{16, 4, 1}),
                         [](const auto& param) {
                           return str("T", param.param.tokens, "_E", param.param.experts, "_K",
                                      param.param.top_k);
                         });

TEST_F(RouterTest, EqualScoresGoToTheLowerIds) {
  zero_weight_ = true;
  const Tensor x = spillway::testing::random_tensor(ctx_, {3, kHidden}, DType::kF32, 1);
  const ops::RouteResult r = routed({.experts = 6, .top_k = 2}, x);
  EXPECT_EQ(counts(r, 6), (std::vector<int64_t>{3, 3, 0, 0, 0, 0}));
  for (const float g : r.gate.value().span<float>()) EXPECT_EQ(g, 0.5F);
}

TEST_F(RouterTest, LogitsOfABF16ModelAreF32) {
  const Tensor x = spillway::testing::random_tensor(ctx_, {3, kHidden}, DType::kBF16, 1);
  const ops::RouteResult r = routed({.experts = 6, .top_k = 2}, x);
  EXPECT_EQ(r.gate.dtype(), DType::kF32);
  EXPECT_EQ(r.aux_loss.dtype(), DType::kF32);
}

TEST_F(RouterTest, NormalizedWeightsSumToTheScale) {
  const Tensor x = spillway::testing::random_tensor(ctx_, {9, kHidden}, DType::kF64, 1);
  const ops::RouteResult r = routed({.experts = 6, .top_k = 3, .router = {.scale = 2.5}}, x);
  for (int64_t t = 0; t < 9; ++t) {
    double sum = 0.0;
    for (int64_t k = 0; k < 3; ++k) sum += r.gate.value().data<double>()[t * 3 + k];
    EXPECT_NEAR(sum, 2.5, 1e-14);
  }
}

}  // namespace
}  // namespace spillway::moe
