// The same sequences cut into micro-batches and ranks in different ways: what must not change, and
// what may.
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// f32 sums in another order; see parity_test.cpp.
constexpr double kLossTolerance = 1e-6;
constexpr double kGradientTolerance = 1e-5;
// The balance term of another cell size is another number, far from rounding.
constexpr double kVisible = 1e-4;
// Large coefficients, so that the balance terms are no small part of the gradients compared.
constexpr double kStrongAux = 1.0;
constexpr double kStrongZ = 0.1;

struct FirstStep {
  metrics::StepRecord record;
  NamedValues gradients;
};

class BatchSplitTest : public TrainTest {
 protected:
  /// Step 1 on the first `split.world()` ranks; filled on rank 0.
  FirstStep first_step(const config::Config& base, const Split& split, int64_t micro_batch,
                       int64_t grad_accum) {
    FirstStep result;
    auto ranks = first_ranks(split.world());
    if (!ranks) return result;
    TrainRun run(*ranks, with_split(base, split, micro_batch, grad_accum));
    result.record = run.trainer.step(1).record;
    result.gradients = gather_gradients(run);
    return result;
  }

  static void expect_equal(const FirstStep& actual, const FirstStep& expected) {
    EXPECT_TRUE(close(actual.record.loss, expected.record.loss, kLossTolerance));
    EXPECT_TRUE(close(actual.record.grad_norm, expected.record.grad_norm, kGradientTolerance));
    EXPECT_TRUE(close(actual.gradients, expected.gradients, kGradientTolerance));
  }
};

// ---- gradient accumulation ------------------------------------------------------------------

struct Cut {
  int64_t micro_batch, grad_accum;
};

class GradAccumTest : public BatchSplitTest,
                      public testing::WithParamInterface<std::tuple<Split, Cut>> {};

TEST_P(GradAccumTest, EqualsOneLargeMicroBatch) {
  const auto& [split, cut] = GetParam();
  const FirstStep whole = first_step(base_config(), split, 8, 1);
  const FirstStep parts = first_step(base_config(), split, cut.micro_batch, cut.grad_accum);
  if (is_root()) expect_equal(parts, whole);
}

INSTANTIATE_TEST_SUITE_P(Cuts, GradAccumTest,
                         testing::Combine(testing::ValuesIn(all_splits()),
                                          testing::Values(Cut{1, 8}, Cut{4, 2})),
                         [](const auto& test) {
                           const Cut& cut = std::get<1>(test.param);
                           return split_name(std::get<0>(test.param)) +
                                  str("_", cut.micro_batch, "x", cut.grad_accum);
                         });

// ---- balance terms --------------------------------------------------------------------------

class BalanceTermTest : public BatchSplitTest, public testing::WithParamInterface<Split> {
 protected:
  config::Config aux_config() const {
    config::Config config = base_config();
    config.moe.router.aux_loss = moe::AuxLoss::kSwitch;
    config.moe.router.aux_coef = kStrongAux;
    return config;
  }
  config::Config z_config() const {
    config::Config config = base_config();
    config.moe.router.z_coef = kStrongZ;
    return config;
  }
};

TEST_P(BalanceTermTest, SwitchLossIsInvariantOverRanksAtFixedMicroBatch) {
  const Split split = GetParam();
  const FirstStep one = first_step(aux_config(), {1, 1}, 2, 4);
  const FirstStep many = first_step(aux_config(), split, 2, 4 / split.world());
  if (!is_root()) return;
  EXPECT_TRUE(close(many.record.aux_loss, one.record.aux_loss, kLossTolerance));
  EXPECT_GE(one.record.aux_loss, 1.0) << "1 is perfect balance";
  expect_equal(many, one);
}

TEST_P(BalanceTermTest, SwitchLossOfLargerCellsIsAnother) {
  const Split split = GetParam();
  const FirstStep small = first_step(aux_config(), split, 1, 8 / split.world());
  const FirstStep large = first_step(aux_config(), split, 2, 4 / split.world());
  if (!is_root()) return;
  // Within a smaller cell the load is less even.
  EXPECT_GT(small.record.aux_loss, large.record.aux_loss * (1.0 + kVisible));
}

TEST_P(BalanceTermTest, SwitchLossActsOnTheGradientOnly) {
  const Split split = GetParam();
  const FirstStep without = first_step(base_config(), split, 2, 1);
  const FirstStep with = first_step(aux_config(), split, 2, 1);
  if (!is_root()) return;
  EXPECT_TRUE(same_bits(with.record.loss, without.record.loss)) << "loss is without aux terms";
  EXPECT_FALSE(close(with.gradients, without.gradients, kVisible));
}

TEST_P(BalanceTermTest, ZLossIsInvariantToEverySplit) {
  const Split split = GetParam();
  const FirstStep whole = first_step(z_config(), {1, 1}, 8, 1);
  ASSERT_TRUE(!is_root() || whole.record.z_loss > 0.0);
  for (int64_t accum = 1; accum * split.world() <= 8; accum *= 2) {
    const FirstStep parts = first_step(z_config(), split, 8 / split.world() / accum, accum);
    if (!is_root()) continue;
    SCOPED_TRACE(str("grad_accum ", accum));
    EXPECT_TRUE(close(parts.record.z_loss, whole.record.z_loss, kLossTolerance));
    expect_equal(parts, whole);
  }
}

TEST_P(BalanceTermTest, TermsAreLoggedAsMeansOverLayers) {
  const Split split = GetParam();
  config::Config config = aux_config();
  config.model.layers = 3;
  const FirstStep all = first_step(config, split, 2, 1);
  config.model.first_dense_layers = 2;
  const FirstStep last = first_step(config, split, 2, 1);
  if (!is_root()) return;
  // Near 1 a layer whatever their number: a sum over layers would be near 3.
  EXPECT_GE(all.record.aux_loss, 1.0);
  EXPECT_LT(all.record.aux_loss, 2.0);
  EXPECT_GE(last.record.aux_loss, 1.0);
  EXPECT_LT(last.record.aux_loss, 2.0);
}

INSTANTIATE_TEST_SUITE_P(Splits, BalanceTermTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

TEST_F(TrainTest, DenseModelHasNoBalanceTermsAndNoLines) {
  config::Config config = base_config();
  config.moe.experts = 0;
  TrainRun run(world(), config);
  const Trainer::StepResult result = run.trainer.step(1);
  EXPECT_EQ(result.record.aux_loss, 0.0);
  EXPECT_EQ(result.record.z_loss, 0.0);
  EXPECT_TRUE(result.ep.empty());
  EXPECT_TRUE(result.ep_step.empty());
  EXPECT_EQ(result.counters.total.combines, 0);
  EXPECT_EQ(result.agreement.all_to_all_bytes, 0);
}

}  // namespace
}  // namespace spillway::train
