#include "spillway/capacity/controller.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "unit/capacity/support.h"

namespace spillway::capacity {
namespace {

using Slots = std::vector<int64_t>;

// Two layers; A = 8, worst case 4096, balanced 512.
std::vector<LayerFacts> two_layers() { return {facts(8, 4096, 512), facts(8, 4096, 512)}; }

// One step of `demand`, nothing grown; then a decision.
std::vector<CapacityChange> run_step(Controller& controller, int64_t step, const Slots& demand) {
  controller.observe({demand, {}});
  return controller.decide(step);
}

// ---- what a run starts from

struct StartCase {
  const char* name;
  const char* policy;
  Initial initial;
  OnOverflow on_overflow;
  int64_t ep;
  int64_t expected;
};
class StartCapacity : public testing::TestWithParam<StartCase> {};

TEST_P(StartCapacity, HoldsBeforeTheFirstStep) {
  const StartCase& c = GetParam();
  CapacityConfig config = policy_config(c.policy);
  config.initial = c.initial;
  config.on_overflow = c.on_overflow;
  config.fixed.slots = 1024;
  config.factor.factor = 1.25;
  const Controller controller(config, two_layers(), c.ep);
  EXPECT_EQ(controller.capacities(), Slots(2, c.expected));
}

constexpr Initial kWorst{};
constexpr Initial kTwice{.worst_case = false, .factor = 2};
INSTANTIATE_TEST_SUITE_P(
    Cases, StartCapacity,
    testing::Values(StartCase{"worst_case", "worst_case", kWorst, OnOverflow::kFail, 2, 4096},
                    StartCase{"worst_case_ignores_initial", "worst_case", kTwice, OnOverflow::kFail,
                              2, 4096},
                    StartCase{"fixed", "fixed", kWorst, OnOverflow::kFail, 2, 1024},
                    StartCase{"fixed_ignores_initial", "fixed", kTwice, OnOverflow::kGrow, 4, 1024},
                    StartCase{"factor", "factor", kWorst, OnOverflow::kFail, 2, 640},
                    StartCase{"peak_worst_case", "peak", kWorst, OnOverflow::kGrow, 2, 4096},
                    StartCase{"peak_factor", "peak", kTwice, OnOverflow::kGrow, 2, 1024},
                    // ep = 1: pinned to the worst case unless fixed or factor drop.
                    StartCase{"ep1_fixed_drop", "fixed", kWorst, OnOverflow::kDrop, 1, 1024},
                    StartCase{"ep1_factor_drop", "factor", kWorst, OnOverflow::kDrop, 1, 640},
                    StartCase{"ep1_fixed_fail", "fixed", kWorst, OnOverflow::kFail, 1, 4096},
                    StartCase{"ep1_fixed_grow", "fixed", kWorst, OnOverflow::kGrow, 1, 4096},
                    StartCase{"ep1_factor_skip", "factor", kWorst, OnOverflow::kSkip, 1, 640},
                    StartCase{"ep1_peak_drop", "peak", kTwice, OnOverflow::kDrop, 1, 4096},
                    StartCase{"ep1_worst_case", "worst_case", kWorst, OnOverflow::kDrop, 1, 4096}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Controller, ClampsTheStart) {
  CapacityConfig config = policy_config("fixed");
  config.fixed.slots = 1 << 20;
  EXPECT_EQ(Controller(config, two_layers(), 2).capacities(), Slots(2, 4096));
  config.fixed.slots = 8;
  config.min_slots = 100;
  EXPECT_EQ(Controller(config, two_layers(), 2).capacities(), Slots(2, 104));
}

TEST(Controller, LayersMayDiffer) {
  CapacityConfig config = policy_config("factor");
  config.factor.factor = 2;
  const Controller controller(config, {facts(8, 4096, 512), facts(16, 320, 256)}, 2);
  EXPECT_EQ(controller.capacities(), (Slots{1024, 320}));
}

TEST(Controller, NoMoeLayersAreFine) {
  Controller controller(quick_peak(), {}, 2);
  EXPECT_TRUE(run_step(controller, 1, {}).empty());
  EXPECT_TRUE(controller.capacities().empty());
}

// ---- when it decides

TEST(Controller, FollowsTheDemand) {
  Controller controller(quick_peak(), two_layers(), 2);
  run_step(controller, 1, {800, 160});
  run_step(controller, 2, {700, 160});
  const std::vector<CapacityChange> changes = run_step(controller, 3, {700, 160});
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].layer, 0);
  EXPECT_EQ(changes[0].old_capacity, 4096);
  EXPECT_EQ(changes[0].new_capacity, 800);
  EXPECT_EQ(changes[0].reason, "peak demand 800 of 3 steps, margin 0");
  EXPECT_EQ(changes[1].layer, 1);
  EXPECT_EQ(changes[1].new_capacity, 160);
  EXPECT_EQ(controller.capacities(), (Slots{800, 160}));
}

TEST(Controller, OnlyChangedLayersAreListed) {
  Controller controller(quick_peak(), two_layers(), 2);
  for (int64_t step = 1; step <= 3; ++step) run_step(controller, step, {800, 160});
  const std::vector<CapacityChange> changes = run_step(controller, 4, {800, 240});
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].layer, 1);
  EXPECT_EQ(changes[0].new_capacity, 240);
}

class WarmUp : public testing::TestWithParam<int64_t> {};

TEST_P(WarmUp, HoldsInitialUntilSoManyStepsWereSeen) {
  CapacityConfig config = quick_peak();
  config.warmup_steps = GetParam();
  config.initial = kTwice;
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  EXPECT_EQ(controller.in_warm_up(), GetParam() > 0);
  for (int64_t step = 1; step < GetParam(); ++step) {
    EXPECT_TRUE(run_step(controller, step, {2000}).empty()) << "step " << step;
    EXPECT_EQ(controller.capacities(), Slots{1024});
  }
  EXPECT_EQ(run_step(controller, std::max<int64_t>(GetParam(), 1), {2000}).size(), 1u);
  EXPECT_EQ(controller.capacities(), Slots{2000});
  EXPECT_FALSE(controller.in_warm_up());
}

INSTANTIATE_TEST_SUITE_P(Steps, WarmUp, testing::Values(0, 1, 5, 20),
                         [](const auto& test) { return str("steps", test.param); });

TEST(Controller, WarmUpDoesNotConcernOtherPolicies) {
  CapacityConfig config = policy_config("fixed");
  config.warmup_steps = 1000;
  const Controller controller(config, two_layers(), 2);
  EXPECT_FALSE(controller.in_warm_up());
  EXPECT_EQ(controller.size_key(), "capacity.fixed.slots");
}

class Interval : public testing::TestWithParam<int64_t> {};

TEST_P(Interval, DecidesOnlyAtItsMultiples) {
  CapacityConfig config = quick_peak();
  config.interval = GetParam();
  config.initial = {.worst_case = false, .factor = 0.1};
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  for (int64_t step = 1; step <= 24; ++step) {
    // A new peak every step: each decision must grow.
    const bool decided = !run_step(controller, step, {100 + 8 * step}).empty();
    EXPECT_EQ(decided, step % GetParam() == 0) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, Interval, testing::Values(1, 2, 5, 12),
                         [](const auto& test) { return str("every", test.param); });

TEST(Controller, PatienceCountsDecisionsNotSteps) {
  CapacityConfig config = quick_peak();
  config.interval = 2;
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_TRUE(run_step(controller, step, {80}).empty());
  }
  EXPECT_EQ(run_step(controller, 6, {80}).size(), 1u);
}

TEST(Controller, ClampsWishes) {
  CapacityConfig config = quick_peak();
  config.peak.shrink_patience = 1;
  config.min_slots = 90;
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  run_step(controller, 1, {8});
  EXPECT_EQ(controller.capacities(), Slots{96});
  run_step(controller, 2, {4096});
  EXPECT_EQ(controller.capacities(), Slots{4096});
}

TEST(Controller, NoDemandAtAllLeavesOneAlignedBlock) {
  CapacityConfig config = quick_peak();
  config.peak.shrink_patience = 1;
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  run_step(controller, 1, {0});
  EXPECT_EQ(controller.capacities(), Slots{8});
}

TEST(Controller, AtEp1NothingEverChanges) {
  CapacityConfig config = quick_peak();
  config.peak.shrink_patience = 1;
  Controller controller(config, two_layers(), 1);
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_TRUE(run_step(controller, step, {8, 80}).empty());
  }
  EXPECT_EQ(controller.capacities(), Slots(2, 4096));
}

// ---- scope "model"

TEST(ModelScope, EveryLayerGetsTheLargestWish) {
  CapacityConfig config = quick_peak();
  config.scope = Scope::kModel;
  Controller controller(config, two_layers(), 2);
  run_step(controller, 1, {800, 160});
  run_step(controller, 2, {800, 160});
  const std::vector<CapacityChange> changes = run_step(controller, 3, {800, 160});
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(controller.capacities(), Slots(2, 800));
  EXPECT_EQ(changes[1].reason, "model scope, layer 0: peak demand 800 of 3 steps, margin 0");
}

TEST(ModelScope, ALayerThatNeedsLessDoesNotBlockTheShrinkOfTheWidest) {
  CapacityConfig config = quick_peak();
  config.scope = Scope::kModel;
  config.peak.window_steps = 1;
  Controller controller(config, two_layers(), 2);
  for (int64_t step = 1; step <= 10; ++step) run_step(controller, step, {800, 160});
  EXPECT_EQ(controller.capacities(), Slots(2, 800));
  for (int64_t step = 11; step <= 13; ++step) run_step(controller, step, {240, 160});
  EXPECT_EQ(controller.capacities(), Slots(2, 240));
}

TEST(ModelScope, EachLayerKeepsToItsOwnWorstCase) {
  CapacityConfig config = quick_peak();
  config.scope = Scope::kModel;
  config.peak.shrink_patience = 1;
  Controller controller(config, {facts(8, 4096, 512), facts(8, 320, 256)}, 2);
  run_step(controller, 1, {800, 160});
  EXPECT_EQ(controller.capacities(), (Slots{800, 320}));
}

TEST(ModelScope, CarriesAGrownCapacityToAllLayersOfAFixedPolicy) {
  CapacityConfig config = policy_config("fixed");
  config.fixed.slots = 512;
  config.scope = Scope::kModel;
  config.on_overflow = OnOverflow::kGrow;
  Controller controller(config, two_layers(), 2);
  controller.observe({{640, 100}, {704, 512}});
  const std::vector<CapacityChange> changes = controller.decide(1);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].layer, 1);
  EXPECT_EQ(changes[0].new_capacity, 704);
  EXPECT_EQ(changes[0].reason, "model scope, layer 0: grown");
}

// ---- growing inside a step

class GrownStays : public testing::TestWithParam<std::string> {};

TEST_P(GrownStays, UnderPoliciesThatNeverLower) {
  CapacityConfig config = policy_config(GetParam());
  config.fixed.slots = 512;
  config.factor.factor = 1;
  config.on_overflow = OnOverflow::kGrow;
  Controller controller(config, two_layers(), 2);
  ASSERT_EQ(controller.capacities(), Slots(2, 512));
  controller.observe({{900, 100}, {992, 512}});
  EXPECT_EQ(controller.capacities(), (Slots{992, 512}));
  EXPECT_TRUE(controller.decide(1).empty());
  for (int64_t step = 2; step <= 300; ++step) {
    EXPECT_TRUE(run_step(controller, step, {8, 8}).empty());
  }
  EXPECT_EQ(controller.capacities(), (Slots{992, 512}));
}

INSTANTIATE_TEST_SUITE_P(Policies, GrownStays, testing::Values("fixed", "factor"),
                         [](const auto& test) { return test.param; });

TEST(Grown, StaysThroughTheWarmUpAndUntilThePolicyLowersIt) {
  CapacityConfig config = quick_peak();
  config.warmup_steps = 10;
  config.initial = {.worst_case = false, .factor = 1};
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  controller.observe({{900}, {992}});
  EXPECT_TRUE(controller.decide(1).empty());
  for (int64_t step = 2; step <= 9; ++step) run_step(controller, step, {400});
  EXPECT_EQ(controller.capacities(), Slots{992});
  // Steps 10, 11 and 12 are the three decisions of the patience.
  run_step(controller, 10, {400});
  run_step(controller, 11, {400});
  EXPECT_EQ(controller.capacities(), Slots{992});
  run_step(controller, 12, {400});
  EXPECT_EQ(controller.capacities(), Slots{400});
}

TEST(Grown, AGrowStartsThePatienceAnew) {
  CapacityConfig config = quick_peak();
  config.peak.window_steps = 1;
  config.initial = {.worst_case = false, .factor = 1};
  Controller controller(config, {facts(8, 4096, 512)}, 2);
  run_step(controller, 1, {80});
  run_step(controller, 2, {80});
  controller.observe({{80}, {600}});  // grew in one of the micro-batches of another layer's step
  EXPECT_TRUE(controller.decide(3).empty());
  EXPECT_TRUE(run_step(controller, 4, {80}).empty());
  EXPECT_EQ(run_step(controller, 5, {80}).size(), 1u);
}

// ---- config key, agreement, errors

TEST(SizeKey, NamesTheKeyInForce) {
  EXPECT_EQ(Controller(policy_config("worst_case"), two_layers(), 2).size_key(), "capacity.policy");
  EXPECT_EQ(Controller(policy_config("factor"), two_layers(), 2).size_key(),
            "capacity.factor.factor");
  CapacityConfig config = quick_peak();
  config.warmup_steps = 1;
  Controller controller(config, two_layers(), 2);
  EXPECT_EQ(controller.size_key(), "capacity.initial");
  run_step(controller, 1, {8, 8});
  EXPECT_EQ(controller.size_key(), "capacity.peak.margin");
}

TEST(Controller, RanksThatSeeTheSameDecideTheSame) {
  Controller a(quick_peak(), two_layers(), 2);
  Controller b(quick_peak(), two_layers(), 2);
  for (int64_t step = 1; step <= 200; ++step) {
    const Slots demand{(step * 7919) % 2003, (step * 104729) % 1009};
    run_step(a, step, demand);
    run_step(b, step, demand);
    ASSERT_EQ(a.capacities(), b.capacities()) << "step " << step;
  }
}

TEST(Controller, RejectsBadFacts) {
  const CapacityConfig config = quick_peak();
  EXPECT_THROW(Controller(config, {facts(12, 4096, 512)}, 2), Error);
  EXPECT_THROW(Controller(config, {facts(8, 4095, 512)}, 2), Error);
  EXPECT_THROW(Controller(config, {facts(8, 0, 0)}, 2), Error);
  EXPECT_THROW(Controller(config, {facts(8, 4096, 5000)}, 2), Error);
  EXPECT_THROW(Controller(config, two_layers(), 0), Error);
  EXPECT_THROW(Controller(policy_config("nothing"), two_layers(), 2), ConfigError);
}

struct BadStep {
  const char* name;
  StepDemand step;
};
class BadSteps : public testing::TestWithParam<BadStep> {};

TEST_P(BadSteps, AreRejectedAndChangeNothing) {
  CapacityConfig config = policy_config("fixed");
  config.fixed.slots = 512;
  Controller controller(config, two_layers(), 2);
  EXPECT_THROW(controller.observe(GetParam().step), Error);
  EXPECT_EQ(controller.capacities(), Slots(2, 512));
  EXPECT_EQ(controller.observed_steps(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, BadSteps,
                         testing::Values(BadStep{"too_few_layers", {{8}, {}}},
                                         BadStep{"too_many_layers", {{8, 8, 8}, {}}},
                                         BadStep{"capacities_of_one_layer", {{8, 8}, {512}}},
                                         BadStep{"capacity_fell", {{8, 8}, {512, 504}}},
                                         BadStep{"capacity_off_alignment", {{8, 8}, {516, 512}}},
                                         BadStep{"capacity_beyond_worst_case",
                                                 {{8, 8}, {512, 4104}}}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway::capacity
