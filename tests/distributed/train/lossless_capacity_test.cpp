// Buffers that follow the demand change no bit of a run: peak + grow, reconfiguration, scopes.
#include <algorithm>

#include "spillway/train/ep_metrics.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kSteps = 10;

struct Story {
  StepResults steps;
  NamedValues weights;
  int64_t new_communicators = 0;  // after how many steps the EP group had another communicator
};

class LosslessCapacityTest : public TrainTest, public testing::WithParamInterface<Split> {
 protected:
  config::Config worst_case() const {
    config::Config c = with_split(base_config(), GetParam(), 2, 2);
    c.moe.alignment = 8;
    // An ordinary AdamW run: routing moves, so demand does.
    c.optim = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 0};
    return c;
  }
  /// Starts at the balanced demand, which real routing exceeds at once.
  config::Config growing() const {
    config::Config c = worst_case();
    c.capacity.policy = "peak";
    c.capacity.on_overflow = capacity::OnOverflow::kGrow;
    c.capacity.initial = {.worst_case = false, .factor = 1.0};
    c.capacity.warmup_steps = 2;
    c.capacity.peak = {.window_steps = 2, .margin = 0.0, .shrink_patience = 1};
    c.capacity.grow_margin = 0.0;
    return c;
  }

  /// What each step leaves is equal on every rank: asserted here for every run.
  Story train(const config::Config& config) {
    Story story;
    auto ranks = first_ranks(GetParam().world());
    if (!ranks) return story;
    TrainRun run(*ranks, config);
    for (int64_t s = 1; s <= kSteps; ++s) {
      const comm::Communicator* const before = &run.trainer.topology().ep_group();
      story.steps.push_back(run.trainer.step(s));
      if (&run.trainer.topology().ep_group() != before) ++story.new_communicators;
      expect_equal_capacities(run, s);
    }
    story.weights = gather_weights(run);
    return story;
  }

  static void expect_equal_capacities(TrainRun& run, int64_t step) {
    std::vector<int64_t> mine = run.trainer.capacity().capacities();
    const size_t layers = mine.size();
    ep::Session& session = run.trainer.capacity().session();
    for (size_t layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(session.capacity(static_cast<int64_t>(layer)), mine[layer])
          << "session and controller after step " << step;
    }
    mine.push_back(session.epoch());
    std::vector<int64_t> all(mine.size() * static_cast<size_t>(run.world.size()));
    run.world.all_gather(mine.data(), all.data(),
                         static_cast<int64_t>(mine.size() * sizeof(int64_t)));
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], mine[i % mine.size()]) << "rank " << i / mine.size() << ", step " << step;
    }
  }

  static void expect_same_run(const Story& story, const Story& reference) {
    for (size_t s = 0; s < reference.steps.size(); ++s) {
      EXPECT_TRUE(same_bits(story.steps[s].record.loss, reference.steps[s].record.loss))
          << "step " << s + 1;
      EXPECT_TRUE(same_bits(story.steps[s].record.grad_norm, reference.steps[s].record.grad_norm));
    }
    EXPECT_TRUE(same_bits(story.weights, reference.weights));
    EXPECT_EQ(total_dropped(story.steps), 0);
  }

  static std::vector<metrics::ReconfigureRecord> reconfigures(const Story& story) {
    std::vector<metrics::ReconfigureRecord> records;
    for (const Trainer::StepResult& step : story.steps) {
      records.insert(records.end(), step.reconfigures.begin(), step.reconfigures.end());
    }
    return records;
  }
};

TEST_P(LosslessCapacityTest, PeakAndGrowHaveTheBitsOfTheWorstCase) {
  const Story reference = train(worst_case());
  const Story story = train(growing());
  if (!is_root()) return;
  ASSERT_GT(total_grow_events(story.steps), 0) << "nothing was shown";
  expect_same_run(story, reference);
  EXPECT_EQ(total_grow_events(reference.steps), 0);
}

TEST_P(LosslessCapacityTest, GrowingIsSeenInTheLines) {
  const Story story = train(growing());
  if (!is_root()) return;
  const Trainer::StepResult& first = story.steps.front();
  bool any = false;
  for (const metrics::EpRecord& line : first.ep) {
    const int64_t highest =
        *std::max_element(line.total_recv_tokens.begin(), line.total_recv_tokens.end());
    EXPECT_GE(*std::max_element(line.capacity_end.begin(), line.capacity_end.end()), highest);
    any = any || highest > line.capacity;
    if (highest > line.capacity) {
      EXPECT_LT(line.headroom, 0.0);
    }
  }
  ASSERT_TRUE(any) << "step 1 stayed within the balanced demand";
  int64_t slots_of_records = 0;
  for (const metrics::ReconfigureRecord& record : grow_records(first.ep)) {
    EXPECT_EQ(record.kind, metrics::ReconfigureKind::kGrow);
    EXPECT_GT(record.new_capacity, record.old_capacity);
    EXPECT_EQ(record.step, 1);
    EXPECT_TRUE(record.micro_batch.has_value());
    EXPECT_GE(record.group, 0);
    EXPECT_LT(record.group, GetParam().dp);
    EXPECT_GT(record.alloc_ms, 0.0) << "the larger buffer was not allocated in prepare";
    slots_of_records += record.new_capacity - record.old_capacity;
  }
  EXPECT_GT(slots_of_records, 0);
  for (const metrics::EpStepRecord& layer : first.ep_step) {
    // The capacities of the next step are those that this one ended with (warm-up).
    const Trainer::StepResult& second = story.steps[1];
    const auto same = std::find_if(second.ep_step.begin(), second.ep_step.end(),
                                   [&](const auto& other) { return other.layer == layer.layer; });
    ASSERT_NE(same, second.ep_step.end());
    EXPECT_EQ(same->capacity, layer.capacity_end);
  }
}

TEST_P(LosslessCapacityTest, ReconfiguringHasTheBitsOfTheWorstCase) {
  const Story reference = train(worst_case());
  for (const auto mode : {capacity::Reconfigure::kBuffers, capacity::Reconfigure::kCommunicator}) {
    config::Config config = growing();
    config.capacity.reconfigure = mode;
    config.capacity.initial = {.worst_case = true};
    const Story story = train(config);
    if (!is_root()) continue;
    const bool buffers = mode == capacity::Reconfigure::kBuffers;
    SCOPED_TRACE(buffers ? "buffers" : "communicator");
    expect_same_run(story, reference);
    const auto records = reconfigures(story);
    ASSERT_GE(records.size(), 2U) << "the capacities never changed";
    int64_t last_epoch = 0;
    double cost_ms = 0.0;
    for (const metrics::ReconfigureRecord& record : records) {
      EXPECT_EQ(record.kind, metrics::ReconfigureKind::kPolicy);
      EXPECT_EQ(record.mode, buffers ? "buffers" : "communicator");
      EXPECT_NE(record.old_capacity, record.new_capacity);
      EXPECT_GE(record.epoch, last_epoch);
      EXPECT_FALSE(record.reason.empty());
      for (const double ms :
           {record.drain_ms, record.finalize_ms, record.init_ms, record.alloc_ms}) {
        EXPECT_GE(ms, 0.0);
        cost_ms += ms;
      }
      last_epoch = record.epoch;
    }
    EXPECT_GT(records.back().epoch, records.front().epoch);
    EXPECT_GT(cost_ms, 0.0) << "a reconfiguration takes time";
    const int64_t epochs = records.back().epoch - records.front().epoch + 1;
    EXPECT_EQ(story.new_communicators, buffers ? 0 : epochs);
    // Lines carry the epoch in which their step began.
    EXPECT_EQ(story.steps.front().ep.front().epoch, records.front().epoch - 1);
    EXPECT_EQ(story.steps.back().ep.front().epoch,
              std::find_if(records.rbegin(), records.rend(), [](const auto& r) {
                return r.step < kSteps;
              })->epoch);
  }
}

TEST_P(LosslessCapacityTest, CapacityFollowsTheDemandDown) {
  config::Config config = growing();
  config.capacity.initial = {.worst_case = true};
  const Story story = train(config);
  if (!is_root()) return;
  const metrics::EpStepRecord& first = story.steps.front().ep_step.front();
  const metrics::EpStepRecord& last = story.steps.back().ep_step.front();
  EXPECT_EQ(first.capacity, story.steps.front().ep.front().worst_case_slots);
  EXPECT_LT(last.capacity, first.capacity);
}

TEST_P(LosslessCapacityTest, ModelScopeKeepsLayersEqual) {
  config::Config config = growing();
  config.capacity.scope = capacity::Scope::kModel;
  config.capacity.warmup_steps = 0;
  const Story reference = train(worst_case());
  const Story story = train(config);
  if (!is_root()) return;
  expect_same_run(story, reference);
  ASSERT_GT(total_grow_events(story.steps) + static_cast<int64_t>(reconfigures(story).size()), 0);
  for (const Trainer::StepResult& step : story.steps) {
    EXPECT_EQ(step.ep_step[0].capacity, step.ep_step[1].capacity) << "step " << step.record.step;
  }
}

TEST_P(LosslessCapacityTest, FixedCapacityGrowsAndStays) {
  config::Config config = worst_case();
  config.capacity.policy = "fixed";
  config.capacity.fixed.slots = 8;
  config.capacity.on_overflow = capacity::OnOverflow::kGrow;
  const Story reference = train(worst_case());
  const Story story = train(config);
  if (!is_root()) return;
  expect_same_run(story, reference);
  ASSERT_GT(total_grow_events(story.steps), 0);
  int64_t before = 8;
  for (const Trainer::StepResult& step : story.steps) {
    EXPECT_GE(step.ep_step[0].capacity, before) << "fixed never shrinks";
    before = step.ep_step[0].capacity_end;
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, LosslessCapacityTest, testing::ValuesIn(expert_parallel_splits()),
                         [](const auto& test) { return split_name(test.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LosslessCapacityTest);

// ---- one EP group overflows, the other does not -------------------------------------------------

class OneGroupGrowsTest : public TrainTest {};

TEST_F(OneGroupGrowsTest, TheOtherGroupFollowsAtTheNextStep) {
  if (world().size() < 4) GTEST_SKIP() << "needs 2 x 2 ranks";
  config::Config base = with_split(base_config(), {2, 2}, 2, 2);
  base.optim = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 0};
  const auto run_losses = [&](const config::Config& config, StepResults& steps) {
    TrainRun run(world(), config);
    steps = train_steps(run, 1, kSteps);
    return gather_weights(run);
  };
  StepResults reference, steps;
  const NamedValues wanted = run_losses(base, reference);
  // Between the largest demands of the two groups in some micro-batch of step 1.
  std::vector<int64_t> slots{0};
  if (is_root()) {
    for (const metrics::EpRecord& line : reference.front().ep) {
      const std::vector<int64_t>& d = line.total_recv_tokens;
      const int64_t low = std::min(std::max(d[0], d[1]), std::max(d[2], d[3]));
      slots[0] = std::max(slots[0], low);
    }
  }
  std::vector<int64_t> all(4);
  world().all_gather(slots.data(), all.data(), sizeof(int64_t));
  config::Config config = base;
  config.capacity.policy = "fixed";
  config.capacity.fixed.slots = all[0];
  config.capacity.on_overflow = capacity::OnOverflow::kGrow;
  config.capacity.grow_margin = 0.0;
  const NamedValues weights = run_losses(config, steps);
  if (!is_root()) return;
  bool one_only = false;
  for (const Trainer::StepResult& step : steps) {
    for (const metrics::EpRecord& line : step.ep) {
      one_only = one_only || line.capacity_end[0] != line.capacity_end[1];
    }
  }
  ASSERT_TRUE(one_only) << "no line in which the groups differ";
  EXPECT_TRUE(same_bits(weights, wanted));
  for (size_t s = 0; s < steps.size(); ++s) {
    EXPECT_TRUE(same_bits(steps[s].record.loss, reference[s].record.loss));
    if (s == 0) continue;
    for (size_t layer = 0; layer < steps[s].ep_step.size(); ++layer) {
      EXPECT_EQ(steps[s].ep_step[layer].capacity, steps[s - 1].ep_step[layer].capacity_end);
    }
  }
}

// ---- ep = 1 -------------------------------------------------------------------------------------

struct PinnedCase {
  const char* name;
  const char* policy;
  capacity::OnOverflow on_overflow;
  bool honoured;
};

class SingleRankGroupTest : public TrainTest, public testing::WithParamInterface<PinnedCase> {};

TEST_P(SingleRankGroupTest, HonoursASmallCapacityOnlyWhereOverflowDrops) {
  const PinnedCase& c = GetParam();
  config::Config config = with_split(base_config(), {1, world().size()}, 2, 1);
  config.moe.alignment = 8;
  config.capacity.policy = c.policy;
  config.capacity.fixed.slots = 96;
  config.capacity.factor.factor = 0.5;
  config.capacity.initial = {.worst_case = false, .factor = 0.5};
  config.capacity.warmup_steps = 1;
  config.capacity.on_overflow = c.on_overflow;
  TrainRun run(world(), config);
  const StepResults steps = train_steps(run, 1, 3);
  if (!is_root()) return;
  for (const Trainer::StepResult& step : steps) {
    // Below the balanced demand a step drops, whatever it routes.
    EXPECT_EQ(step.record.skipped, c.honoured && c.on_overflow == capacity::OnOverflow::kSkip);
    EXPECT_EQ(step.counters.total.host_syncs, 0);
    for (const metrics::EpRecord& line : step.ep) {
      if (c.honoured) {
        EXPECT_LT(line.capacity, line.balanced_slots);
      } else {
        EXPECT_EQ(line.capacity, line.worst_case_slots);
        EXPECT_EQ(line.capacity_end, std::vector<int64_t>(line.capacity_end.size(), line.capacity));
      }
    }
  }
  EXPECT_EQ(total_dropped(steps) > 0, c.honoured);
  EXPECT_EQ(total_grow_events(steps), 0);
}

using capacity::OnOverflow;
INSTANTIATE_TEST_SUITE_P(
    Policies, SingleRankGroupTest,
    testing::Values(PinnedCase{"fixed_fail", "fixed", OnOverflow::kFail, false},
                    PinnedCase{"fixed_grow", "fixed", OnOverflow::kGrow, false},
                    PinnedCase{"fixed_skip", "fixed", OnOverflow::kSkip, true},
                    PinnedCase{"fixed_drop", "fixed", OnOverflow::kDrop, true},
                    PinnedCase{"factor_drop", "factor", OnOverflow::kDrop, true},
                    PinnedCase{"factor_fail", "factor", OnOverflow::kFail, false},
                    PinnedCase{"peak_drop", "peak", OnOverflow::kDrop, false},
                    PinnedCase{"peak_grow", "peak", OnOverflow::kGrow, false},
                    PinnedCase{"worst_case", "worst_case", OnOverflow::kFail, false}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway::train
