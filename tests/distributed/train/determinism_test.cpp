// Same config, same bits; another seed, another run.
#include "spillway/optim/schedule.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kSteps = 5;

struct Ending {
  StepResults steps;
  NamedValues weights;
};

class DeterminismTest : public TrainTest, public testing::WithParamInterface<Split> {
 protected:
  /// A plain AdamW run with balance terms, so that nothing is idle.
  config::Config config() const {
    config::Config c = with_split(base_config(), GetParam(), 2, 2);
    c.moe.router.aux_loss = moe::AuxLoss::kSwitch;
    c.moe.router.aux_coef = 0.01;
    c.moe.router.z_coef = 0.001;
    c.moe.alignment = 8;
    c.optim = {.lr = 2e-3, .min_lr = 2e-4, .warmup_steps = 2};
    c.train.steps = kSteps;
    return c;
  }
  Ending run(const config::Config& c) {
    Ending ending;
    auto ranks = first_ranks(GetParam().world());
    if (!ranks) return ending;
    TrainRun run(*ranks, c);
    ending.steps = train_steps(run, 1, kSteps);
    ending.weights = gather_weights(run);
    return ending;
  }
};

TEST_P(DeterminismTest, SameConfigTwiceGivesTheSameBits) {
  const Ending first = run(config());
  const Ending second = run(config());
  if (!is_root()) return;
  for (size_t s = 0; s < first.steps.size(); ++s) {
    const metrics::StepRecord& a = first.steps[s].record;
    const metrics::StepRecord& b = second.steps[s].record;
    EXPECT_TRUE(same_bits(b.loss, a.loss));
    EXPECT_TRUE(same_bits(b.grad_norm, a.grad_norm));
    EXPECT_TRUE(same_bits(b.aux_loss, a.aux_loss));
    EXPECT_TRUE(same_bits(b.z_loss, a.z_loss));
    EXPECT_EQ(expert_tokens(second.steps[s]), expert_tokens(first.steps[s]));
  }
  EXPECT_TRUE(same_bits(second.weights, first.weights));
}

TEST_P(DeterminismTest, AnotherSeedGivesAnotherRun) {
  const Ending first = run(config());
  config::Config other = config();
  other.run.seed += 1;
  const Ending second = run(other);
  if (!is_root()) return;
  EXPECT_FALSE(same_bits(second.steps[0].record.loss, first.steps[0].record.loss));
  EXPECT_FALSE(same_bits(second.weights, first.weights));
}

TEST_P(DeterminismTest, FusedPrepareHasTheSameBits) {
  const Ending split = run(config());
  config::Config fused_config = config();
  fused_config.ep.fused_prepare = true;
  const Ending fused = run(fused_config);
  if (!is_root()) return;
  EXPECT_TRUE(same_bits(fused.steps.back().record.loss, split.steps.back().record.loss));
  EXPECT_TRUE(same_bits(fused.weights, split.weights));
}

TEST_P(DeterminismTest, PoisonedTailsChangeNoBit) {
  const Ending clean = run(config());
  config::Config poisoned_config = config();
  poisoned_config.ep.poison = true;
  const Ending poisoned = run(poisoned_config);
  if (!is_root()) return;
  EXPECT_TRUE(same_bits(poisoned.weights, clean.weights));
}

TEST_P(DeterminismTest, RecomputedLayersHaveTheSameBits) {
  const Ending kept = run(config());
  for (const bool save : {false, true}) {
    config::Config c = config();
    c.recompute.region = model::RecomputeRegion::kLayer;
    if (save) c.recompute.save = {"dispatch", "router"};
    const Ending again = run(c);
    if (!is_root()) continue;
    SCOPED_TRACE(save ? "saved" : "recomputed");
    EXPECT_TRUE(same_bits(again.steps.back().record.loss, kept.steps.back().record.loss));
    EXPECT_TRUE(same_bits(again.weights, kept.weights));
  }
}

TEST_P(DeterminismTest, StepsFollowTheSchedule) {
  const Ending ending = run(config());
  if (!is_root()) return;
  for (int64_t s = 1; s <= kSteps; ++s) {
    const metrics::StepRecord& record = ending.steps[static_cast<size_t>(s - 1)].record;
    EXPECT_EQ(record.step, s);
    EXPECT_EQ(record.lr, optim::learning_rate(config().optim, s, kSteps));
    EXPECT_EQ(record.tokens, GetParam().world() * 2 * 2 * 32);
    EXPECT_FALSE(record.skipped);
    EXPECT_GT(record.step_ms, 0.0);
    EXPECT_GT(record.tokens_per_s, 0.0);
    EXPECT_GT(record.tflops, 0.0);
    EXPECT_GT(record.mem_peak_bytes, 0);
    EXPECT_FALSE(record.mfu.has_value()) << "no peak is known for a CPU";
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, DeterminismTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

}  // namespace
}  // namespace spillway::train
