// n steps, a checkpoint, m more in a new trainer: the same bits as n + m steps in one.
#include <algorithm>
#include <fstream>

#include "spillway/core/rng.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kSteps = 24;
constexpr int kStops = 20;
constexpr int64_t kSequences = 8;     // of a step
constexpr int64_t kTextBytes = 1600;  // 50 sequences: about 6 steps an epoch

struct ResumeCase {
  const char* name;
  Split split;
  int64_t zero = 0;
  DType dtype = DType::kF32;
};

std::vector<ResumeCase> cases() {
  const std::vector<ResumeCase> all{{"ep1dp1", {1, 1}},
                                    {"ep1dp1zero", {1, 1}, 1},
                                    {"ep2dp1", {2, 1}},
                                    {"ep2dp1zero", {2, 1}, 1},
                                    {"ep1dp2zero", {1, 2}, 1},
                                    {"ep4dp1", {4, 1}},
                                    {"ep4dp1zero", {4, 1}, 1},
                                    {"ep2dp2", {2, 2}},
                                    {"ep2dp2zero", {2, 2}, 1},
                                    {"ep2dp2zeroBf16", {2, 2}, 1, DType::kBF16},
                                    {"ep2dp1Bf16", {2, 1}, 0, DType::kBF16}};
  const int ranks = comm::make_mpi_world()->size();
  std::vector<ResumeCase> possible;
  for (const ResumeCase& c : all) {
    if (c.split.world() == ranks) possible.push_back(c);  // fewer: in a job of their own
  }
  return possible;
}

std::string case_name(const testing::TestParamInfo<ResumeCase>& info) { return info.param.name; }

/// What a step leaves behind on this rank.
struct Trail {
  StepResults steps;
  std::vector<uint64_t> weights;                 // a step: checksum of this rank's weights
  std::vector<std::vector<int64_t>> capacities;  // a step: of each layer afterwards
};

class ResumeTest : public TrainTest, public testing::WithParamInterface<ResumeCase> {
 protected:
  std::string short_text() const {
    const std::string path = (folder() / "short.txt").string();
    if (is_root()) {
      std::ifstream in(text_path(), std::ios::binary);
      std::string text(kTextBytes, ' ');
      in.read(text.data(), kTextBytes);
      std::ofstream(path, std::ios::binary) << text;
    }
    return path;
  }
  /// Everything that has a state is in use: balance terms, selection bias, a policy that shrinks
  /// and grows, a schedule, several epochs.
  config::Config config() const {
    config::Config c = base_config();
    c.parallel.ep = GetParam().split.ep;
    c.parallel.zero = GetParam().zero;
    c.run.dtype = GetParam().dtype;
    c.moe.alignment = 4;
    c.moe.router.score = moe::ScoreFunction::kSigmoid;
    c.moe.router.aux_loss = moe::AuxLoss::kSequence;
    c.moe.router.aux_coef = 0.01;
    c.moe.router.z_coef = 0.001;
    c.moe.router.bias_update_rate = 0.01;
    c.capacity.policy = "peak";
    c.capacity.peak = {.window_steps = 3, .margin = 0.0, .shrink_patience = 1};
    c.capacity.warmup_steps = 2;
    c.capacity.on_overflow = capacity::OnOverflow::kGrow;
    c.capacity.grow_margin = 0.0;
    c.optim = {.lr = 3e-3, .min_lr = 3e-4, .warmup_steps = 4};
    c.data.train = {short_text()};
    c.train.steps = kSteps;
    c.train.micro_batch = kSequences / 2 / GetParam().split.world();
    c.train.grad_accum = 2;
    c.train.check_replicas = 1;
    c.checkpoint.keep = 100;
    return c;
  }
};

void take_steps(TrainRun& run, int64_t last, Trail& trail,
                const std::function<void(int64_t)>& after) {
  while (run.trainer.steps_done() < last) {
    trail.steps.push_back(run.trainer.step(run.trainer.steps_done() + 1));
    trail.weights.push_back(weights_checksum(run));
    trail.capacities.push_back(run.trainer.capacity().capacities());
    after(run.trainer.steps_done());
  }
}

/// Random stops in [1, kSteps), with repeats allowed, and how many steps follow each.
std::vector<std::pair<int64_t, int64_t>> random_stops() {
  Rng rng(11);
  std::vector<std::pair<int64_t, int64_t>> stops;
  for (int i = 0; i < kStops; ++i) {
    const auto n = static_cast<int64_t>(1 + rng.below(kSteps - 1));
    stops.emplace_back(n, static_cast<int64_t>(1 + rng.below(static_cast<uint64_t>(kSteps - n))));
  }
  return stops;
}

TEST_P(ResumeTest, GoesOnBitForBit) {
  auto ranks = first_ranks(GetParam().split.world());
  if (!ranks) return;
  const config::Config base = config();
  ranks->barrier();  // the text is there
  const auto stops = random_stops();
  std::map<int64_t, std::string> checkpoints;
  Trail straight;
  {
    TrainRun run(*ranks, base);
    take_steps(run, kSteps, straight, [&](int64_t done) {
      const bool wanted = std::any_of(stops.begin(), stops.end(),
                                      [&](const auto& stop) { return stop.first == done; });
      if (wanted) checkpoints[done] = run.trainer.save_checkpoint(false).path;
    });
  }
  // The case shows what it is meant to: the policy acted (at ep = 1 there is nothing to size).
  const bool acted = straight.capacities.front() != straight.capacities.back();
  EXPECT_EQ(acted, GetParam().split.ep > 1);

  for (const auto& [n, m] : stops) {
    SCOPED_TRACE(str("stopped after ", n, ", ", m, " more"));
    config::Config c = base;
    c.checkpoint.resume = checkpoints.at(n);
    TrainRun run(*ranks, c);
    ASSERT_EQ(run.trainer.steps_done(), n);
    Trail resumed;
    take_steps(run, n + m, resumed, [](int64_t) {});
    for (size_t i = 0; i < resumed.steps.size(); ++i) {
      const size_t s = static_cast<size_t>(n) + i;
      ASSERT_EQ(resumed.weights[i], straight.weights[s]) << "weights after step " << s + 1;
      ASSERT_EQ(resumed.capacities[i], straight.capacities[s]);
      if (!is_root()) continue;
      const metrics::StepRecord& a = resumed.steps[i].record;
      const metrics::StepRecord& b = straight.steps[s].record;
      EXPECT_EQ(a.step, b.step);
      EXPECT_TRUE(same_bits(a.loss, b.loss));
      EXPECT_TRUE(same_bits(a.grad_norm, b.grad_norm));
      EXPECT_TRUE(same_bits(a.aux_loss, b.aux_loss));
      EXPECT_TRUE(same_bits(a.lr, b.lr));
      EXPECT_EQ(expert_tokens(resumed.steps[i]), expert_tokens(straight.steps[s]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, ResumeTest, testing::ValuesIn(cases()), case_name);

/// Steps that are skipped advance data and schedule, and make no update: both counts are kept.
TEST_F(TrainTest, ResumeAfterSkippedSteps) {
  constexpr int64_t kLast = 12;
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto ranks = first_ranks(2);
  if (!ranks) return;
  config::Config c = with_split(base_config(), {2, 1}, 2, 1);
  c.train.steps = kLast;
  c.checkpoint.keep = kLast;
  c.optim = {.lr = 3e-3, .min_lr = 3e-4, .warmup_steps = 4};
  // Near the balanced demand: some steps overflow, some do not.
  c.capacity.policy = "factor";
  c.capacity.factor.factor = 1.15;
  c.capacity.on_overflow = capacity::OnOverflow::kSkip;
  Trail straight;
  std::vector<std::string> checkpoints;
  {
    TrainRun run(*ranks, c);
    take_steps(run, kLast, straight,
               [&](int64_t) { checkpoints.push_back(run.trainer.save_checkpoint(false).path); });
  }
  int64_t skipped = 0;
  for (const Trainer::StepResult& step : straight.steps) skipped += step.record.skipped ? 1 : 0;
  ASSERT_GT(skipped, 0);
  ASSERT_LT(skipped, kLast);
  for (int64_t n = 1; n < kLast; ++n) {
    SCOPED_TRACE(str("stopped after ", n));
    c.checkpoint.resume = checkpoints[static_cast<size_t>(n - 1)];
    TrainRun run(*ranks, c);
    Trail resumed;
    take_steps(run, kLast, resumed, [](int64_t) {});
    EXPECT_EQ(resumed.weights.back(), straight.weights.back());
    EXPECT_EQ(resumed.steps.back().record.skipped, straight.steps.back().record.skipped);
  }
}

/// Another split of the same global batch: the state is the same, the steps agree to rounding.
class ResumeElsewhere : public TrainTest, public testing::WithParamInterface<ResumeCase> {};

TEST_P(ResumeElsewhere, StateIsExactAndTheRunGoesOn) {
  constexpr int64_t kBefore = 4;
  constexpr double kRounding = 1e-5;  // sums over ranks in another order, two steps on
  auto one = first_ranks(1);
  config::Config c = with_split(base_config(), {1, 1}, 2, 4);
  c.train.steps = kBefore + 2;
  c.optim = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 1};
  std::string path = (folder() / "run" / "checkpoints" / "step-00000004").string();
  NamedValues weights;
  StepResults later;
  if (one) {
    TrainRun run(*one, c);
    train_steps(run, 1, kBefore);
    EXPECT_EQ(run.trainer.save_checkpoint(false).path, path);
    weights = gather_weights(run);
    later = train_steps(run, kBefore + 1, 2);
  }
  world().barrier();
  auto ranks = first_ranks(GetParam().split.world());
  if (!ranks) return;
  const int parts = GetParam().split.world();
  config::Config elsewhere = with_split(c, GetParam().split, 2, 4 / parts);
  elsewhere.parallel.zero = GetParam().zero;
  elsewhere.checkpoint.resume = path;
  TrainRun run(*ranks, elsewhere);
  EXPECT_EQ(run.trainer.steps_done(), kBefore);
  const NamedValues restored = gather_weights(run);
  const StepResults steps = train_steps(run, kBefore + 1, 2);
  if (!is_root()) return;
  EXPECT_TRUE(same_bits(restored, weights));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_TRUE(close(steps[i].record.loss, later[i].record.loss, kRounding));
    EXPECT_TRUE(close(steps[i].record.grad_norm, later[i].record.grad_norm, kRounding));
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, ResumeElsewhere, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace spillway::train
