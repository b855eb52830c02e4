// Evaluation: what it computes, and that it leaves no trace in the training run.
#include "spillway/train/evaluation.h"

#include <csignal>
#include <fstream>

#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// f32 sums of another order over ranks; see parity_test.cpp.
constexpr double kLossTolerance = 1e-6;
constexpr int64_t kEvalBatches = 3;

class EvaluationTest : public TrainTest, public testing::WithParamInterface<Split> {
 protected:
  config::Config config() const {
    config::Config c = with_split(base_config(), GetParam(), 8 / GetParam().world(), 1);
    c.data.valid = c.data.train;
    c.train.eval_steps = kEvalBatches;
    return c;
  }
  /// Capacity too small for real routing: training drops.
  config::Config dropping() const {
    config::Config c = config();
    c.capacity.policy = "factor";
    c.capacity.factor.factor = 0.5;
    c.capacity.on_overflow = capacity::OnOverflow::kDrop;
    return c;
  }
  static EvalResult evaluate_run(TrainRun& run, int64_t step) {
    const config::Config& c = run.config;
    const data::BatchSource source(data::TokenStream::open(c.data.valid, c.data.format),
                                   {.seq = c.data.seq,
                                    .layout = {.world = run.world.size(),
                                               .rank = run.world.rank(),
                                               .micro_batch = c.train.micro_batch,
                                               .grad_accum = c.train.grad_accum}});
    return evaluate(run.ctx, run.world, c, run.trainer.decoder(), source, run.trainer.capacity(),
                    run.signals, step);
  }
};

TEST_P(EvaluationTest, LossIsThatOfOneRank) {
  EvalResult one, many;
  if (auto ranks = first_ranks(1)) {
    config::Config c = config();
    c.parallel.ep = 1;
    c.train.micro_batch = 8;
    TrainRun run(*ranks, c);
    one = evaluate_run(run, 0);
  }
  if (auto ranks = first_ranks(GetParam().world())) {
    TrainRun run(*ranks, config());
    many = evaluate_run(run, 0);
  }
  if (!is_root()) return;
  EXPECT_TRUE(close(many.loss, one.loss, kLossTolerance));
  EXPECT_EQ(many.tokens, kEvalBatches * 8 * 32);
  EXPECT_EQ(one.tokens, many.tokens);
  EXPECT_FALSE(many.stopped);
}

TEST_P(EvaluationTest, IsTheLossOfATrainingStepOnTheSameData) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.data.shuffle = false;
  c.train.eval_steps = 1;
  TrainRun run(*ranks, c);
  const EvalResult eval = evaluate_run(run, 0);
  const Trainer::StepResult step = run.trainer.step(1);
  EXPECT_TRUE(same_bits(step.record.loss, eval.loss));
}

TEST_P(EvaluationTest, LeavesTheTrainingRunAsItWas) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.capacity.policy = "peak";
  c.capacity.on_overflow = capacity::OnOverflow::kGrow;
  c.capacity.initial = {.worst_case = false, .factor = 1.0};
  c.capacity.warmup_steps = 1;
  c.capacity.peak = {.window_steps = 2, .margin = 0.0, .shrink_patience = 1};
  TrainRun plain(*ranks, c), watched(*ranks, c);
  for (int64_t s = 1; s <= 5; ++s) {
    const auto epoch = watched.trainer.capacity().session().epoch();
    const auto capacities = watched.trainer.capacity().capacities();
    evaluate_run(watched, s);
    EXPECT_EQ(watched.trainer.capacity().capacities(), capacities);
    EXPECT_EQ(watched.trainer.capacity().session().epoch(), epoch);
    EXPECT_EQ(watched.trainer.capacity().session().live_handles(), 0);
    const Trainer::StepResult a = plain.trainer.step(s), b = watched.trainer.step(s);
    EXPECT_TRUE(same_bits(b.record.loss, a.record.loss));
    EXPECT_EQ(b.agreement.demand, a.agreement.demand);
    EXPECT_EQ(b.agreement.all_to_all_bytes, a.agreement.all_to_all_bytes);
    EXPECT_EQ(b.counters.total.prepares, a.counters.total.prepares);
    EXPECT_EQ(b.counters.total.host_syncs, a.counters.total.host_syncs);
    EXPECT_EQ(b.agreement.counters_differ_on, -1);
  }
  EXPECT_EQ(weights_checksum(watched), weights_checksum(plain));
}

TEST_P(EvaluationTest, CountersStandStill) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun run(*ranks, config());
  run.trainer.step(1);
  const CounterSet before = run.ctx.counters().total();
  evaluate_run(run, 1);
  EXPECT_EQ(run.ctx.counters().total(), before);
  run.ctx.counters().add(&CounterSet::prepares);
  EXPECT_EQ(run.ctx.counters().total().prepares, before.prepares + 1) << "counting goes on";
}

TEST_P(EvaluationTest, StopsAtABatchBoundaryOnAllRanks) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun run(*ranks, config());
  if (ranks->rank() == ranks->size() - 1) std::raise(SIGUSR2);
  EvalResult eval = evaluate_run(run, 0);
  EXPECT_TRUE(eval.stopped);
  EXPECT_EQ(eval.tokens, 8 * 32) << "one batch";
  eval = evaluate_run(run, 0);
  EXPECT_FALSE(eval.stopped) << "the signal was used up";
  EXPECT_EQ(eval.tokens, kEvalBatches * 8 * 32);
}

TEST_P(EvaluationTest, LosslessWhereTrainingDrops) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun dropped(*ranks, dropping()), ample(*ranks, config());
  EXPECT_GT(dropped.trainer.step(1).agreement.dropped_assignments, 0);
  TrainRun fresh(*ranks, dropping());
  const EvalResult lossless = evaluate_run(fresh, 0), reference = evaluate_run(ample, 0);
  EXPECT_EQ(lossless.dropped_assignments, 0);
  EXPECT_TRUE(same_bits(lossless.loss, reference.loss));
}

TEST_P(EvaluationTest, SameDropsAsTrainingDoes) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = dropping();
  c.capacity.eval = capacity::EvalCapacity::kSame;
  c.data.shuffle = false;
  c.train.eval_steps = 1;
  TrainRun run(*ranks, c);
  const EvalResult eval = evaluate_run(run, 0);
  const Trainer::StepResult step = run.trainer.step(1);
  EXPECT_GT(eval.dropped_assignments, 0);
  EXPECT_EQ(eval.dropped_assignments, step.agreement.dropped_assignments);
  EXPECT_TRUE(same_bits(eval.loss, step.record.loss));
}

TEST_P(EvaluationTest, SameDropsWhereTrainingWouldFail) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = dropping();
  c.capacity.on_overflow = capacity::OnOverflow::kFail;
  c.capacity.eval = capacity::EvalCapacity::kSame;
  TrainRun run(*ranks, c);
  const int64_t dropped = evaluate_run(run, 0).dropped_assignments;
  if (GetParam().ep == 1) {  // pinned to the worst case
    EXPECT_EQ(dropped, 0);
    EXPECT_NO_THROW(run.trainer.step(1));
  } else {
    EXPECT_GT(dropped, 0);
    EXPECT_THROW(run.trainer.step(1), ep::OverflowError);
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, EvaluationTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

TEST_F(TrainTest, TooLittleValidationTextIsSaidAtTheStart) {
  config::Config c = base_config();
  const std::string path = (folder() / "short.txt").string();
  if (is_root()) std::ofstream(path) << std::string(40, 'x');
  world().barrier();
  c.data.valid = {path};
  c.train.micro_batch = 4;
  EXPECT_THROW(TrainRun(world(), c), DataError);
}

}  // namespace
}  // namespace spillway::train
