// What a router chooses: score functions, selection bias and groups of experts, against a full
// sort.
#include <gtest/gtest.h>

#include "routing_reference.h"

namespace spillway::kernels {
namespace {

using testing::random_tensor;
using testing::tensor_of;
using testing::throws_with;

// ---- choice -------------------------------------------------------------------------------------

struct Groups {
  int64_t experts, groups, topk_groups, top_k;
};
enum class Bias { kNone, kSmall, kNegative };
using ChoiceCase = std::tuple<ScoreFunction, Groups, Bias>;

class RouteChoiceOf : public ::testing::TestWithParam<ChoiceCase> {};

Tensor make_bias(Context& ctx, Bias kind, int64_t num_experts) {
  if (kind == Bias::kNone) return {};
  Tensor bias = Tensor::empty(ctx, {num_experts}, DType::kF32);
  Rng rng(17);
  // Quarters: exact in f32, and the same again and again, so that scores tie.
  for (float& b : bias.span<float>()) {
    b = 0.25F * static_cast<float>(rng.below(4)) - (kind == Bias::kNegative ? 9.0F : 0.5F);
  }
  return bias;
}

TEST_P(RouteChoiceOf, IsThatOfAFullSortTiesIncluded) {
  const auto& [score, shape, bias_kind] = GetParam();
  constexpr int64_t kTokens = 200;
  Context ctx(Device::kCpu, 2);
  Tensor logits = Tensor::empty(ctx, {kTokens, shape.experts}, DType::kF64);
  Rng rng(5);
  // Few different values, so that most tokens have ties between experts and between groups.
  for (double& x : logits.span<double>()) x = 0.5 * static_cast<double>(rng.below(7)) - 1.5;
  const Tensor bias = make_bias(ctx, bias_kind, shape.experts);
  const RoutingOptions options{
      .score = score, .groups = shape.groups, .topk_groups = shape.topk_groups};
  Routed routed(ctx, logits, shape.top_k);
  route(ctx, routed.args(logits, options, bias));
  for (int64_t t = 0; t < kTokens; ++t) {
    Row biased = reference_scores(row_of(logits, t), score);
    for (size_t e = 0; bias.defined() && e < biased.size(); ++e) {
      biased[e] += static_cast<double>(bias.data<float>()[e]);
      ASSERT_TRUE(bias_kind != Bias::kNegative || biased[e] < 0.0);
    }
    ASSERT_EQ(routed.choice(t), reference_choice(biased, options, shape.top_k)) << "token " << t;
  }
}

TEST_P(RouteChoiceOf, NaNLogitsStillGiveDistinctIds) {
  const auto& [score, shape, bias_kind] = GetParam();
  Context ctx;
  Tensor logits = random_tensor(ctx, {2, shape.experts}, DType::kF32, 1);
  for (int64_t e = 0; e < shape.experts; ++e) logits.data<float>()[e] = std::nanf("");
  logits.data<float>()[2 * shape.experts - 1] = std::nanf("");
  Routed routed(ctx, logits, shape.top_k);
  route(ctx, routed.args(logits,
                         {.score = score, .groups = shape.groups, .topk_groups = shape.topk_groups},
                         make_bias(ctx, bias_kind, shape.experts)));
  for (int64_t t = 0; t < 2; ++t) {
    std::vector<int32_t> ids = routed.choice(t);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
    EXPECT_TRUE(ids.front() >= 0 && ids.back() < shape.experts);
  }
}

std::string route_choice_of_label(const ::testing::TestParamInfo<RouteChoiceOf::ParamType>& test) {
  const auto& [score, g, bias] = test.param;
  constexpr const char* kBiasNames[] = {"", "_bias", "_negative"};
  return str(score_name(score), "_e", g.experts, "_g", g.groups, "_of", g.topk_groups, "_k",
             g.top_k, kBiasNames[static_cast<int>(bias)]);
}
INSTANTIATE_TEST_SUITE_P(
    Grid, RouteChoiceOf,
    ::testing::Combine(::testing::ValuesIn(kAllScores),
                       ::testing::Values(Groups{9, 1, 1, 3}, Groups{9, 0, 0, 9},
                                         Groups{12, 4, 2, 4}, Groups{12, 3, 1, 4},
                                         Groups{8, 8, 3, 2}, Groups{32, 8, 4, 6},
                                         Groups{64, 2, 2, 8}, Groups{15, 3, 2, 10}),
                       ::testing::Values(Bias::kNone, Bias::kSmall, Bias::kNegative)),
    route_choice_of_label);

TEST(RouteGroups, NegativeBiasedScoresStayInTheirGroup) {
  // Group 0 (experts 0, 1) is best although all is negative. A masked 0.0 would win the places.
  Context ctx;
  const Tensor logits = Tensor::zeros(ctx, {1, 6}, DType::kF32);
  const Tensor bias = tensor_of<float>(ctx, {6}, {-2, -3, -4, -4, -5, -5});
  Routed routed(ctx, logits, 2);
  route(ctx, routed.args(logits, {.score = ScoreFunction::kSigmoid, .groups = 3, .topk_groups = 1},
                         bias));
  EXPECT_EQ(routed.choice(0), (std::vector<int32_t>{0, 1}));
}

TEST(RouteGroups, AGroupCountsByItsTwoBest) {
  Context ctx;
  // The best expert alone is in group 1, the best pair in group 0.
  const Tensor logits = tensor_of<float>(ctx, {1, 6}, {1, 1, -9, 2, -9, -9});
  Routed routed(ctx, logits, 1);
  route(ctx,
        routed.args(logits, {.score = ScoreFunction::kSigmoid, .groups = 2, .topk_groups = 1}));
  EXPECT_EQ(routed.choice(0), (std::vector<int32_t>{0}));
}

TEST(RouteBias, ActsOnTheChoiceOnly) {
  Context ctx;
  for (const ScoreFunction score : kAllScores) {
    SCOPED_TRACE(score_name(score));
    const RoutingOptions options{.score = score, .scale = 2.5};
    const Tensor logits = random_tensor(ctx, {9, 8}, DType::kF64, 2);
    const Tensor bias = tensor_of<float>(ctx, {8}, {5, 0, 0, -5, 0, 5, 0, 0});
    Routed biased(ctx, logits, 2), plain(ctx, logits, 2), given(ctx, logits, 2);
    route(ctx, biased.args(logits, options, bias));
    route(ctx, plain.args(logits, options));
    given.ids = biased.ids;
    route_given(ctx, given.args(logits, options));
    EXPECT_TRUE(testing::same_bytes(biased.gate, given.gate)) << "weights know no bias";
    EXPECT_TRUE(testing::same_bytes(biased.probs, plain.probs));
    EXPECT_FALSE(testing::same_bytes(biased.ids, plain.ids));
    for (int64_t t = 0; t < 9; ++t) {
      std::vector<int32_t> ids = biased.choice(t);
      std::sort(ids.begin(), ids.end());
      EXPECT_EQ(ids, (std::vector<int32_t>{0, 5}));
    }
  }
}

TEST(RouteBias, AStrongBiasLeavesExpertsEmpty) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, {300, 8}, DType::kF32, 3);
  const Tensor bias = tensor_of<float>(ctx, {8}, {0, -50, 0, -50, 0, 0, -50, 0});
  Routed routed(ctx, logits, 3);
  route(ctx, routed.args(logits, {.score = ScoreFunction::kSigmoid}, bias));
  Tensor counts = Tensor::empty(ctx, {8}, DType::kI64);
  count_experts(ctx, routed.ids, counts);
  for (int64_t e = 0; e < 8; ++e) {
    EXPECT_EQ(counts.data<int64_t>()[e] == 0, bias.data<float>()[e] < 0.0F) << e;
  }
}

// ---- errors -------------------------------------------------------------------------------------

struct BadCase {
  const char* label;
  RoutingOptions options;
  bool bias;
  std::vector<std::string> texts;
};
class BadRouting : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadRouting, NamesWhatIsWrong) {
  const BadCase& c = GetParam();
  Context ctx;
  const Tensor logits = random_tensor(ctx, {3, 12}, DType::kF32, 1);
  const Tensor bias = c.bias ? Tensor::zeros(ctx, {12}, DType::kF32) : Tensor();
  Routed routed(ctx, logits, 5);
  EXPECT_TRUE(
      throws_with<Error>([&] { route(ctx, routed.args(logits, c.options, bias)); }, c.texts));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadRouting,
    ::testing::Values(
        BadCase{"groups", {.groups = 5, .topk_groups = 1}, false, {"5 groups", "12"}},
        BadCase{"no_group", {.groups = 3, .topk_groups = 0}, false, {"topk_groups is 0", "[1, 3]"}},
        BadCase{
            "many_groups", {.groups = 3, .topk_groups = 4}, false, {"topk_groups is 4", "[1, 3]"}},
        BadCase{"too_few_experts",
                {.groups = 4, .topk_groups = 1},
                false,
                {"topk_groups is 1", "5 experts"}},
        BadCase{
            "bias_after", {.softmax_before_topk = false}, true, {"softmax_before_topk is false"}},
        BadCase{"groups_after",
                {.softmax_before_topk = false, .groups = 2, .topk_groups = 1},
                false,
                {"softmax_before_topk is false"}}),
    [](const auto& test) { return std::string(test.param.label); });

TEST(BadBias, OfAnotherSizeOrType) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, {3, 12}, DType::kF64, 1);
  Routed routed(ctx, logits, 5);
  EXPECT_TRUE(throws_with<Error>(
      [&] { route(ctx, routed.args(logits, {}, Tensor::zeros(ctx, {11}, DType::kF32))); },
      {"bias", "[11]", "[12]"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { route(ctx, routed.args(logits, {}, Tensor::zeros(ctx, {12}, DType::kF64))); },
      {"bias", "f64", "f32"}));
}

}  // namespace
}  // namespace spillway::kernels
