#include "spillway/moe/selection_bias.h"

#include "moe_fixture.h"
#include "support/throws.h"

namespace spillway::moe {
namespace {

using spillway::testing::tensor_of;

std::vector<float> updated(std::vector<float> bias, const std::vector<int64_t>& counts,
                           double rate) {
  Context ctx;
  Tensor values = tensor_of<float>(ctx, {static_cast<int64_t>(bias.size())}, bias);
  update_selection_bias(values, counts, rate);
  return {values.data<float>(), values.data<float>() + values.numel()};
}

TEST(SelectionBiasUpdate, RaisesTheIdleAndLowersTheBusyByTheSameStep) {
  // The mean is 5.
  EXPECT_EQ(updated({0, 0, 0, 0}, {0, 4, 6, 10}, 0.125),
            (std::vector<float>{0.125F, 0.125F, -0.125F, -0.125F}));
}

TEST(SelectionBiasUpdate, LeavesAnExpertAtTheMeanAlone) {
  EXPECT_EQ(updated({0.5F, 0.25F, -1}, {1, 2, 3}, 0.25),
            (std::vector<float>{0.75F, 0.25F, -1.25F}));
  EXPECT_EQ(updated({0.5F, -0.5F}, {7, 7}, 0.25), (std::vector<float>{0.5F, -0.5F}));
  EXPECT_EQ(updated({0.5F, -0.5F}, {0, 0}, 0.25), (std::vector<float>{0.5F, -0.5F}));
}

TEST(SelectionBiasUpdate, AMeanBetweenIntegersIsNoTie) {
  // 10/3 lies above 3 and below 4.
  EXPECT_EQ(updated({0, 0, 0}, {3, 3, 4}, 1.0), (std::vector<float>{1, 1, -1}));
}

TEST(SelectionBiasUpdate, CountsNeedNotFitInFloats) {
  constexpr int64_t kMany = int64_t{1} << 53;
  EXPECT_EQ(updated({0, 0, 0}, {kMany, kMany + 1, kMany + 2}, 0.5),
            (std::vector<float>{0.5F, 0, -0.5F}));
}

TEST(SelectionBiasUpdate, NeedsACountForEachExpert) {
  EXPECT_TRUE(spillway::testing::throws_with<Error>(
      [] {
        updated({0, 0, 0}, {1, 2}, 0.1);
      },
      {"[3]", "2 counts"}));
}

MoeConfig biased_config() {
  MoeConfig config = small_config();
  config.router.score = ScoreFunction::kSigmoid;
  config.router.bias_update_rate = 0.001;
  return config;
}

TEST(SelectionBias, IsThereOnlyWithARate) {
  EXPECT_FALSE(TestLayer({}).layer.selection_bias().defined());
  const TestLayer biased({.config = biased_config()});
  const Tensor& bias = biased.layer.selection_bias();
  EXPECT_EQ(bias.dtype(), DType::kF32);
  EXPECT_EQ(bias.shape(), (Shape{4}));
  for (const float b : bias.span<float>()) EXPECT_EQ(b, 0.0F);
}

TEST(SelectionBias, AStrongOneEmptiesExpertsAndGradientsStayRight) {
  for (const ScoreFunction score :
       {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus}) {
    MoeConfig config = biased_config();
    config.router.score = score;
    TestLayer test({.config = config});
    Tensor bias = test.layer.selection_bias();
    bias.data<float>()[0] = bias.data<float>()[2] = -100.0F;
    {
      Tape tape(test.ctx);
      test.run(tape);
    }
    EXPECT_EQ(test.records.back().ledger.expert_tokens, (std::vector<int64_t>{0, 6, 0, 6}));
    EXPECT_TRUE(spillway::testing::parameter_gradients_match(
        test.ctx, test.store, [&](Tape& tape) { return test.scalar(tape); }));
  }
}

}  // namespace
}  // namespace spillway::moe
