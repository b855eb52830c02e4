// What a training step does when a rank's demand exceeds its capacity: drop, skip, fail.
#include <algorithm>

#include "spillway/core/math.h"
#include "spillway/optim/schedule.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

using capacity::OnOverflow;

// Gates of a token sum to 1 after normalisation, in f32; the masses are f64 sums of them.
constexpr double kMassTolerance = 1e-5;

class OverflowTest : public TrainTest {
 protected:
  config::Config overflowing(const Split& split, int64_t alignment, int64_t slots,
                             OnOverflow action) const {
    config::Config c = with_split(base_config(), split, 2, 2);
    c.moe.alignment = alignment;
    c.capacity.policy = "fixed";
    c.capacity.fixed.slots = slots;
    c.capacity.on_overflow = action;
    return c;
  }
};

// ---- drop: the ledger ---------------------------------------------------------------------------

/// Tokens of a micro-batch: 2 sequences of 32.
constexpr int64_t kTokens = 64;
constexpr int64_t kTopK = 2;

struct DropCase {
  const char* name;
  int64_t alignment;
  double of_balanced;  // capacity as a share of the balanced demand
};

class DropTest : public OverflowTest,
                 public testing::WithParamInterface<std::tuple<Split, DropCase>> {
 protected:
  StepResults train(const config::Config& config, int64_t steps) {
    auto ranks = first_ranks(std::get<0>(GetParam()).world());
    if (!ranks) return {};
    TrainRun run(*ranks, config);
    return train_steps(run, 1, steps);
  }
};

void check_identities(const metrics::EpRecord& line, const Split& split, int64_t alignment) {
  SCOPED_TRACE(str("step ", line.step, " micro-batch ", line.micro_batch, " layer ", line.layer));
  const auto ranks = static_cast<size_t>(split.world());
  const int64_t per_rank = 8 / split.ep;
  ASSERT_EQ(line.total_recv_tokens.size(), ranks);
  ASSERT_EQ(line.expert_tokens->size(), static_cast<size_t>(split.dp));
  EXPECT_EQ(line.fully_dropped_tokens->size(), ranks);
  EXPECT_EQ(sum(*line.recv_assignments), split.world() * kTokens * kTopK);
  int64_t worst = 0;
  for (int group = 0; group < split.dp; ++group) {
    const std::vector<int64_t>& tokens = (*line.expert_tokens)[static_cast<size_t>(group)];
    const std::vector<int64_t>& drops = (*line.dropped_by_expert)[static_cast<size_t>(group)];
    int64_t by_source = 0, by_receiver = 0;
    for (int r = 0; r < split.ep; ++r) {
      const auto rank = static_cast<size_t>(group * split.ep + r);
      int64_t received = 0, dropped = 0, demand = 0, slots = 0;
      for (int64_t e = r * per_rank; e < (r + 1) * per_rank; ++e) {
        const auto expert = static_cast<size_t>(e);
        EXPECT_LE(drops[expert], tokens[expert]);
        received += tokens[expert];
        dropped += drops[expert];
        demand += round_up(tokens[expert], alignment);
        slots += round_up(tokens[expert] - drops[expert], alignment);
      }
      EXPECT_EQ((*line.recv_assignments)[rank], received);
      EXPECT_EQ((*line.dropped_assignments)[rank], dropped);
      EXPECT_EQ(line.total_recv_tokens[rank], demand) << "demand is before drops";
      EXPECT_EQ((*line.slot_counts_sum)[rank], slots);
      EXPECT_EQ((*line.padding_slots)[rank], slots - (received - dropped));
      EXPECT_LE(slots, line.capacity);
      EXPECT_EQ(demand > line.capacity, dropped > 0) << "overflow exactly when something drops";
      by_source += (*line.dropped_by_source)[rank];
      by_receiver += dropped;
      worst = std::max(worst, demand);
    }
    EXPECT_EQ(sum(tokens), split.ep * kTokens * kTopK);
    EXPECT_EQ(by_source, by_receiver);
    EXPECT_EQ(by_source, sum(drops));
  }
  EXPECT_LE(kTopK * sum(*line.fully_dropped_tokens), sum(*line.dropped_assignments));
  EXPECT_NEAR(*line.gate_mass, split.world() * kTokens, kMassTolerance * *line.gate_mass);
  EXPECT_EQ(*line.dropped_gate_mass > 0.0, sum(*line.dropped_assignments) > 0);
  EXPECT_LT(*line.dropped_gate_mass, *line.gate_mass);
  EXPECT_DOUBLE_EQ(line.max_over_balanced,
                   static_cast<double>(worst) / static_cast<double>(line.balanced_slots));
  EXPECT_DOUBLE_EQ(line.headroom,
                   1.0 - static_cast<double>(worst) / static_cast<double>(line.capacity));
  EXPECT_EQ(line.capacity_end, std::vector<int64_t>(static_cast<size_t>(split.dp), line.capacity));
}

TEST_P(DropTest, EveryLineKeepsTheIdentities) {
  const auto& [split, c] = GetParam();
  config::Config config = overflowing(split, c.alignment, 0, OnOverflow::kDrop);
  const int64_t balanced = config::layer_facts(config).balanced_slots;
  config.capacity.fixed.slots =
      round_up(static_cast<int64_t>(c.of_balanced * static_cast<double>(balanced)), c.alignment);
  constexpr int64_t kSteps = 3;
  // No policy holds more than any routing can use.
  const int64_t capacity =
      std::min(config.capacity.fixed.slots, config::layer_facts(config).worst_case_slots);
  const StepResults steps = train(config, kSteps);
  if (!is_root()) return;
  const bool lossless = c.of_balanced > 1.0;
  EXPECT_EQ(total_dropped(steps) == 0, lossless);
  for (const Trainer::StepResult& step : steps) {
    ASSERT_EQ(step.ep.size(), 2U * 2U) << "a line a micro-batch and layer";
    int64_t dropped = 0;
    for (const metrics::EpRecord& line : step.ep) {
      check_identities(line, split, c.alignment);
      dropped += sum(*line.dropped_assignments);
    }
    for (const metrics::EpStepRecord& layer : step.ep_step) {
      int64_t demand = 0, drops = 0, fully = 0;
      double mass = 0.0;
      for (const metrics::EpRecord& line : step.ep) {
        if (line.layer != layer.layer) continue;
        demand = std::max(demand, *std::max_element(line.total_recv_tokens.begin(),
                                                    line.total_recv_tokens.end()));
        drops += sum(*line.dropped_assignments);
        fully += sum(*line.fully_dropped_tokens);
        mass += *line.dropped_gate_mass;
      }
      EXPECT_EQ(layer.max_total_recv_tokens, demand);
      EXPECT_EQ(*layer.dropped_assignments, drops);
      EXPECT_EQ(*layer.fully_dropped_tokens, fully);
      EXPECT_NEAR(*layer.dropped_gate_mass, mass, kMassTolerance * (1.0 + mass));
      EXPECT_EQ(layer.capacity, capacity);
      EXPECT_EQ(layer.capacity_end, capacity);
      EXPECT_EQ(layer.grow_events, 0);
    }
    EXPECT_EQ(step.agreement.dropped_assignments, dropped);
    EXPECT_FALSE(step.record.skipped) << "a step with drops counts";
  }
}

constexpr DropCase kDropCases[] = {{"unaligned_half", 1, 0.5},
                                   {"unaligned_tight", 1, 0.95},
                                   {"aligned_half", 8, 0.5},
                                   {"aligned_tight", 8, 0.95},
                                   {"aligned_ample", 8, 100.0}};

INSTANTIATE_TEST_SUITE_P(Cases, DropTest,
                         testing::Combine(testing::ValuesIn(all_splits()),
                                          testing::ValuesIn(kDropCases)),
                         [](const auto& test) {
                           return split_name(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

// ---- skip and fail ------------------------------------------------------------------------------

class ActionTest : public OverflowTest, public testing::WithParamInterface<Split> {};

TEST_P(ActionTest, SkippedStepLeavesWeightsAndGoesOn) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config config = overflowing(GetParam(), 1, 16, OnOverflow::kSkip);
  config.optim.schedule = optim::Schedule::kCosine;
  config.optim.min_lr = 1.0;
  config.train.steps = 4;
  TrainRun skipping(*ranks, config);
  const uint64_t before = weights_checksum(skipping);
  const StepResults steps = train_steps(skipping, 1, 2);
  EXPECT_EQ(weights_checksum(skipping), before);
  for (const Trainer::StepResult& step : steps) {
    EXPECT_TRUE(step.record.skipped);
    EXPECT_EQ(step.agreement.skip, 1);
    EXPECT_EQ(step.record.lr,
              optim::learning_rate(config.optim, step.record.step, config.train.steps));
  }
  EXPECT_NE(steps[0].record.lr, steps[1].record.lr) << "the schedule goes on";
  // The forward is that of `drop`, on the data of its own step.
  config.capacity.on_overflow = OnOverflow::kDrop;
  TrainRun dropping(*ranks, config);
  const Trainer::StepResult second = dropping.trainer.step(2);
  EXPECT_TRUE(same_bits(steps[1].record.loss, second.record.loss));
  EXPECT_FALSE(same_bits(steps[0].record.loss, second.record.loss)) << "the data goes on";
  EXPECT_NE(weights_checksum(dropping), before) << "drop updates";
}

TEST_P(ActionTest, SkippedStepsLeaveNoTraceInTheOptimizer) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  constexpr int64_t kSteps = 8;
  config::Config config = overflowing(GetParam(), 1, 16, OnOverflow::kSkip);
  config.capacity.policy = "worst_case";
  config.optim.lr = config.optim.min_lr = 0.1;  // demand then follows the data of a step
  int64_t slots = 0;
  {
    // Between a busy step and a calm one after it: the first overflows, the second does not.
    TrainRun lossless(*ranks, config);
    std::vector<int64_t> demands;
    for (const Trainer::StepResult& step : train_steps(lossless, 1, kSteps)) {
      demands.push_back(
          *std::max_element(step.agreement.demand.begin(), step.agreement.demand.end()));
    }
    int64_t widest = 0;
    for (size_t busy = 0; busy < demands.size(); ++busy) {
      for (size_t calm = busy + 1; calm < demands.size(); ++calm) {
        if (demands[busy] - demands[calm] <= widest) continue;
        widest = demands[busy] - demands[calm];
        slots = (demands[busy] + demands[calm]) / 2;
      }
    }
    ASSERT_GT(slots, 0);
  }
  config.capacity.policy = "fixed";
  config.capacity.fixed.slots = slots;
  TrainRun skipping(*ranks, config);
  std::vector<int64_t> taken, skipped;
  for (int64_t s = 1; s <= kSteps; ++s) {
    (skipping.trainer.step(s).record.skipped ? skipped : taken).push_back(s);
  }
  ASSERT_FALSE(taken.empty());
  ASSERT_FALSE(skipped.empty());
  ASSERT_LT(skipped.front(), taken.back()) << "no step was taken after a skipped one";
  TrainRun only_taken(*ranks, config);
  for (const int64_t s : taken) EXPECT_FALSE(only_taken.trainer.step(s).record.skipped);
  EXPECT_EQ(weights_checksum(only_taken), weights_checksum(skipping));
}

TEST_P(ActionTest, SkipWithoutOverflowIsTheWorstCaseRun) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config config = overflowing(GetParam(), 8, 8 * 1000, OnOverflow::kSkip);
  TrainRun ample(*ranks, config);
  config.capacity.policy = "worst_case";
  config.capacity.on_overflow = OnOverflow::kFail;
  TrainRun reference(*ranks, config);
  train_steps(ample, 1, 3);
  train_steps(reference, 1, 3);
  EXPECT_EQ(weights_checksum(ample), weights_checksum(reference));
}

TEST_P(ActionTest, FailNamesLayerRankDemandAndKeyOnEveryRank) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config config = overflowing(GetParam(), 8, 16, OnOverflow::kFail);
  config.model.first_dense_layers = 1;
  // What the step demands, from a run that holds it all.
  std::string expected;
  {
    config::Config lossless = config;
    lossless.capacity.policy = "worst_case";
    TrainRun run(*ranks, lossless);
    const Trainer::StepResult step = run.trainer.step(1);
    if (ranks->rank() == 0) {
      // Ranks of the first group; the others see their own group's numbers.
      const std::vector<int64_t>& demand = step.ep.front().total_recv_tokens;
      const auto highest = std::max_element(demand.begin(), demand.begin() + GetParam().ep);
      expected = str("OverflowError: layer 1 rank ", highest - demand.begin(), " demand ", *highest,
                     " slots capacity 16 slots, smallest that fits ", *highest,
                     ": set capacity.fixed.slots");
    }
  }
  TrainRun run(*ranks, config);
  const uint64_t before = weights_checksum(run);
  bool thrown = false;
  try {
    run.trainer.step(1);
  } catch (const ep::OverflowError& error) {
    thrown = true;
    EXPECT_EQ(error.exit_code(), ExitCode::kOverflow);
    const std::string text = error.what();
    if (ranks->rank() == 0) {
      EXPECT_EQ(text, expected);
    }
    EXPECT_EQ(text.find("OverflowError: layer 1 rank "), 0U);
    EXPECT_NE(text.find(" slots capacity 16 slots, smallest that fits "), std::string::npos);
    EXPECT_NE(text.find(": set capacity.fixed.slots"), std::string::npos);
  }
  EXPECT_TRUE(thrown);
  EXPECT_EQ(weights_checksum(run), before);
  EXPECT_TRUE(run.trainer.capacity().session().active()) << "the session stays usable";
}

INSTANTIATE_TEST_SUITE_P(Splits, ActionTest, testing::ValuesIn(expert_parallel_splits()),
                         [](const auto& test) { return split_name(test.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ActionTest);

struct KeyCase {
  const char* policy;
  const char* key;
};

class OverflowKeyTest : public OverflowTest, public testing::WithParamInterface<KeyCase> {};

TEST_P(OverflowKeyTest, IsThatOfThePolicyInForce) {
  if (world().size() < 2) GTEST_SKIP() << "needs ep > 1";
  config::Config config = overflowing({world().size(), 1}, 1, 16, OnOverflow::kFail);
  config.capacity.policy = GetParam().policy;
  config.capacity.factor.factor = 0.25;
  config.capacity.initial = {.worst_case = false, .factor = 0.25};
  TrainRun run(world(), config);
  try {
    run.trainer.step(1);
    FAIL() << "no overflow";
  } catch (const ep::OverflowError& error) {
    const std::string text = error.what();
    const std::string tail = str(": set ", GetParam().key);
    ASSERT_GE(text.size(), tail.size());
    EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, OverflowKeyTest,
                         testing::Values(KeyCase{"fixed", "capacity.fixed.slots"},
                                         KeyCase{"factor", "capacity.factor.factor"},
                                         KeyCase{"peak", "capacity.initial"}),
                         [](const auto& test) { return std::string(test.param.policy); });

}  // namespace
}  // namespace spillway::train
