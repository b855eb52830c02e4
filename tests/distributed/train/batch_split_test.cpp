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
  config::Config aux_config(moe::AuxLoss kind = moe::AuxLoss::kSwitch) const {
    config::Config config = base_config();
    config.moe.router.aux_loss = kind;
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

TEST_P(BalanceTermTest, SequenceLossIsInvariantToEverySplit) {
  const Split split = GetParam();
  for (const moe::ScoreFunction score :
       {moe::ScoreFunction::kSoftmax, moe::ScoreFunction::kSigmoid}) {
    config::Config config = aux_config(moe::AuxLoss::kSequence);
    config.moe.router.score = score;
    const FirstStep whole = first_step(config, {1, 1}, 8, 1);
    ASSERT_TRUE(!is_root() || whole.record.aux_loss >= 1.0) << "1 is perfect balance";
    for (int64_t accum = 1; accum * split.world() <= 8; accum *= 2) {
      const FirstStep parts = first_step(config, split, 8 / split.world() / accum, accum);
      if (!is_root()) continue;
      SCOPED_TRACE(str("grad_accum ", accum));
      EXPECT_TRUE(close(parts.record.aux_loss, whole.record.aux_loss, kLossTolerance));
      expect_equal(parts, whole);
    }
  }
}

TEST_P(BalanceTermTest, GlobalLossIsInvariantOverRanksAtFixedWorldTimesMicroBatch) {
  const Split split = GetParam();
  const config::Config config = aux_config(moe::AuxLoss::kGlobal);
  for (const int64_t accum : {1, 2}) {
    SCOPED_TRACE(str("grad_accum ", accum));
    const FirstStep one = first_step(config, {1, 1}, 8 / accum, accum);
    const FirstStep many = first_step(config, split, 8 / accum / split.world(), accum);
    if (!is_root()) continue;
    EXPECT_TRUE(close(many.record.aux_loss, one.record.aux_loss, kLossTolerance));
    EXPECT_GE(one.record.aux_loss, 1.0);
    expect_equal(many, one);
  }
}

TEST_P(BalanceTermTest, GlobalLossOfMoreMicroBatchesIsAnother) {
  const Split split = GetParam();
  const config::Config config = aux_config(moe::AuxLoss::kGlobal);
  const FirstStep whole = first_step(config, split, 8 / split.world(), 1);
  const FirstStep parts = first_step(config, split, 4 / split.world(), 2);
  if (!is_root()) return;
  EXPECT_GT(parts.record.aux_loss, whole.record.aux_loss * (1.0 + kVisible));
}

TEST_P(BalanceTermTest, EachTermHasItsOwnValue) {
  const Split split = GetParam();
  std::vector<double> values;
  for (const moe::AuxLoss kind :
       {moe::AuxLoss::kSequence, moe::AuxLoss::kSwitch, moe::AuxLoss::kGlobal}) {
    values.push_back(first_step(aux_config(kind), split, 2, 1).record.aux_loss);
  }
  EXPECT_EQ(first_step(base_config(), split, 2, 1).record.aux_loss, 0.0) << "none";
  if (!is_root()) return;
  // The more tokens are taken together, the more even is their load.
  EXPECT_GT(values[0], values[1] * (1.0 + kVisible));
  if (split.world() > 1) {
    EXPECT_GT(values[1], values[2] * (1.0 + kVisible));
  } else {
    EXPECT_TRUE(close(values[1], values[2], kLossTolerance)) << "one rank is all ranks";
  }
}

TEST_P(BalanceTermTest, RecomputedLayersGiveTheSameBits) {
  const Split split = GetParam();
  for (const moe::AuxLoss kind :
       {moe::AuxLoss::kSwitch, moe::AuxLoss::kSequence, moe::AuxLoss::kGlobal}) {
    config::Config config = aux_config(kind);
    const FirstStep plain = first_step(config, split, 2, 1);
    config.recompute.region = model::RecomputeRegion::kLayer;
    const FirstStep again = first_step(config, split, 2, 1);
    if (!is_root()) continue;
    EXPECT_TRUE(same_bits(again.record.aux_loss, plain.record.aux_loss));
    EXPECT_TRUE(same_bits(again.gradients, plain.gradients));
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
