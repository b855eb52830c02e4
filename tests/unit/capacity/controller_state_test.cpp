// Saving and restoring a controller: what a resumed run starts from.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/capacity/controller.h"
#include "spillway/core/error.h"
#include "unit/capacity/support.h"

namespace spillway::capacity {
namespace {

using Slots = std::vector<int64_t>;

std::vector<LayerFacts> one_layer() { return {facts(8, 4096, 512)}; }

int64_t demand_at(int64_t step) { return (step * 7919) % 2003; }

class ResumeAt : public testing::TestWithParam<int64_t> {};

TEST_P(ResumeAt, ContinuesAsIfNeverStopped) {
  CapacityConfig config = quick_peak();
  config.warmup_steps = 6;
  config.interval = 2;
  config.initial = {.worst_case = false, .factor = 1};
  Controller whole(config, one_layer(), 2);
  Controller resumed(config, one_layer(), 2);
  for (int64_t step = 1; step <= 60; ++step) {
    whole.observe({{demand_at(step)}, {}});
    const size_t changes = whole.decide(step).size();
    if (step == GetParam()) {
      ASSERT_TRUE(resumed.restore(whole.state()));
      EXPECT_EQ(resumed.observed_steps(), step);
    } else if (step > GetParam()) {
      resumed.observe({{demand_at(step)}, {}});
      EXPECT_EQ(resumed.decide(step).size(), changes) << "step " << step;
    }
    if (step >= GetParam()) {
      ASSERT_EQ(resumed.capacities(), whole.capacities()) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, ResumeAt, testing::Values(1, 5, 6, 7, 21, 40),
                         [](const auto& test) { return str("step", test.param); });

CapacityConfig fixed_at(int64_t slots) {
  CapacityConfig config = policy_config("fixed");
  config.fixed.slots = slots;
  config.on_overflow = OnOverflow::kGrow;
  return config;
}

TEST(ControllerState, KeepsAGrownCapacity) {
  Controller before(fixed_at(512), one_layer(), 2);
  before.observe({{600}, {664}});
  Controller after(fixed_at(512), one_layer(), 2);
  ASSERT_TRUE(after.restore(before.state()));
  EXPECT_EQ(after.capacities(), Slots{664});
}

TEST(ControllerState, ANewSizeInTheConfigWins) {
  Controller before(fixed_at(512), one_layer(), 2);
  before.observe({{600}, {664}});
  for (const int64_t slots : {256, 1024}) {
    Controller after(fixed_at(slots), one_layer(), 2);
    ASSERT_TRUE(after.restore(before.state()));
    EXPECT_EQ(after.capacities(), Slots{slots});
  }
}

TEST(ControllerState, AfterTheWarmUpInitialNoLongerMatters) {
  Controller before(quick_peak(), one_layer(), 2);
  for (int64_t step = 1; step <= 5; ++step) {
    before.observe({{80}, {}});
    before.decide(step);
  }
  ASSERT_EQ(before.capacities(), Slots{80});
  CapacityConfig config = quick_peak();
  config.initial = {.worst_case = false, .factor = 1};
  Controller after(config, one_layer(), 2);
  ASSERT_TRUE(after.restore(before.state()));
  EXPECT_EQ(after.capacities(), Slots{80});
}

TEST(ControllerState, ARaisedMinimumIsHonoured) {
  Controller before(quick_peak(), one_layer(), 2);
  for (int64_t step = 1; step <= 5; ++step) {
    before.observe({{80}, {}});
    before.decide(step);
  }
  CapacityConfig config = quick_peak();
  config.min_slots = 200;
  Controller after(config, one_layer(), 2);
  ASSERT_TRUE(after.restore(before.state()));
  EXPECT_EQ(after.capacities(), Slots{200});
}

TEST(ControllerState, AShorterWindowKeepsTheNewestSteps) {
  Controller before(quick_peak(), one_layer(), 2);
  for (const int64_t demand : {800, 160, 80, 240}) before.observe({{demand}, {}});
  CapacityConfig config = quick_peak();
  config.peak.window_steps = 2;
  Controller after(config, one_layer(), 2);
  ASSERT_TRUE(after.restore(before.state()));
  EXPECT_EQ(after.state().demands[0], (Slots{80, 240}));
}

TEST(ControllerState, RestoringReplacesWhatWasSeen) {
  Controller before(quick_peak(), one_layer(), 2);
  before.observe({{80}, {}});
  Controller after(quick_peak(), one_layer(), 2);
  after.observe({{4000}, {}});
  ASSERT_TRUE(after.restore(before.state()));
  EXPECT_EQ(after.state().demands[0], Slots{80});
}

TEST(ControllerState, OfAnotherPolicyOrOtherLayersIsNotTaken) {
  Controller before(fixed_at(512), one_layer(), 2);
  before.observe({{600}, {664}});
  Controller other_policy(quick_peak(), one_layer(), 2);
  EXPECT_FALSE(other_policy.restore(before.state()));
  EXPECT_EQ(other_policy.observed_steps(), 0);
  Controller other_split(fixed_at(512), {facts(8, 2048, 512)}, 4);
  EXPECT_FALSE(other_split.restore(before.state()));
  EXPECT_EQ(other_split.capacities(), Slots{512});
  // With an alignment of 1 the worst case may be that of fewer experts a rank; demand is not.
  Controller half_the_experts(fixed_at(512), {facts(8, 4096, 256)}, 4);
  EXPECT_FALSE(half_the_experts.restore(before.state()));
  EXPECT_EQ(half_the_experts.capacities(), Slots{512});
  Controller more_layers(fixed_at(512), {facts(8, 4096, 512), facts(8, 4096, 512)}, 2);
  EXPECT_FALSE(more_layers.restore(before.state()));
}

TEST(ControllerState, WherePinnedASavedCapacityIsNotTaken) {
  Controller before(quick_peak(), one_layer(), 2);
  for (int64_t step = 1; step <= 5; ++step) {
    before.observe({{80}, {}});
    before.decide(step);
  }
  Controller after(quick_peak(), one_layer(), 1);
  ASSERT_TRUE(after.restore(before.state()));
  EXPECT_EQ(after.capacities(), Slots{4096});
}

TEST(ControllerState, PartsOfUnequalLengthAreAnError) {
  Controller controller(quick_peak(), one_layer(), 2);
  ControllerState damaged = controller.state();
  damaged.demands.clear();
  EXPECT_THROW(controller.restore(damaged), Error);
}

TEST(ControllerState, HistoryStaysBoundedOverALongRun) {
  Controller controller(quick_peak(), one_layer(), 2);
  for (int64_t step = 1; step <= 5000; ++step) {
    controller.observe({{demand_at(step)}, {}});
    controller.decide(step);
  }
  EXPECT_EQ(controller.state().demands[0].size(), 4u);
  EXPECT_EQ(controller.observed_steps(), 5000);
}

}  // namespace
}  // namespace spillway::capacity
