// Each policy on its own: one layer, demands by hand.

#include "spillway/capacity/policy.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "spillway/capacity/policy_table.h"
#include "spillway/core/error.h"
#include "unit/capacity/support.h"

namespace spillway::capacity {
namespace {

std::unique_ptr<Policy> make(const CapacityConfig& config) {
  return policy_named(config.policy).make(config);
}

// ---- the table

TEST(PolicyTable, ListsThePoliciesOfThisVersion) {
  EXPECT_EQ(policy_names(), "worst_case, fixed, factor, peak");
}

TEST(PolicyTable, UnknownNamesAreConfigErrors) {
  EXPECT_EQ(find_policy("nothing"), nullptr);
  try {
    policy_named("nothing");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "capacity.policy is \"nothing\"; allowed: worst_case, fixed, factor, peak");
    EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
  }
}

class EveryPolicy : public testing::TestWithParam<std::string> {
 protected:
  const PolicyEntry& entry() const { return policy_named(GetParam()); }
};

TEST_P(EveryPolicy, RowIsComplete) {
  EXPECT_EQ(find_policy(entry().name), &entry());
  EXPECT_TRUE(entry().size_key.starts_with("capacity."));
  EXPECT_FALSE(entry().help.empty());
}

TEST_P(EveryPolicy, AgreesWithItsRow) {
  const auto policy = make(policy_config(GetParam()));
  EXPECT_EQ(policy->history_steps() > 0, entry().adaptive);
}

TEST_P(EveryPolicy, DecidesOnAnEmptyHistory) {
  const LayerFacts layer = facts(8, 8192, 512, 1024);
  const auto policy = make(policy_config(GetParam()));
  const Wanted wanted = policy->decide(LayerHistory(4), layer);
  EXPECT_GT(wanted.slots, 0);
  EXPECT_FALSE(wanted.reason.empty());
}

TEST_P(EveryPolicy, StateRoundTrips) {
  const auto policy = make(policy_config(GetParam()));
  LayerHistory history(4);
  history.push(100);
  policy->decide(history, facts(8, 8192, 512, 1024));
  const auto twin = make(policy_config(GetParam()));
  twin->restore(policy->state());
  EXPECT_EQ(twin->state(), policy->state());
  std::vector<double> too_long = policy->state();
  too_long.push_back(1);
  EXPECT_THROW(twin->restore(too_long), Error);
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const PolicyEntry& entry : policy_table()) names.emplace_back(entry.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Table, EveryPolicy, testing::ValuesIn(all_names()),
                         [](const auto& test) { return test.param; });

// ---- policies without memory

TEST(WorstCasePolicy, IsTheWorstCase) {
  EXPECT_EQ(make(policy_config("worst_case"))->decide(LayerHistory(0), facts(8, 4096, 512)).slots,
            4096);
}

TEST(FixedPolicy, IsTheConfiguredNumber) {
  CapacityConfig config = policy_config("fixed");
  config.fixed.slots = 1536;
  EXPECT_EQ(make(config)->decide(LayerHistory(0), facts(8, 4096, 512)).slots, 1536);
}

struct FactorCase {
  const char* name;
  double factor;
  int64_t alignment, balanced, expected;
};
class FactorPolicy : public testing::TestWithParam<FactorCase> {};

TEST_P(FactorPolicy, IsAMultipleOfTheBalancedDemand) {
  const FactorCase& c = GetParam();
  CapacityConfig config = policy_config("factor");
  config.factor.factor = c.factor;
  EXPECT_EQ(make(config)->decide(LayerHistory(0), facts(c.alignment, 4096, c.balanced)).slots,
            c.expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, FactorPolicy,
                         testing::Values(FactorCase{"one", 1, 8, 512, 512},
                                         FactorCase{"one_and_a_quarter", 1.25, 8, 512, 640},
                                         FactorCase{"rounds_up", 1.01, 128, 512, 640},
                                         FactorCase{"no_alignment", 1.1, 1, 500, 550},
                                         FactorCase{"below_one", 0.5, 8, 512, 256},
                                         FactorCase{"up_to_the_worst_case", 50, 8, 512, 4096}),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- peak

// Feeds demands one a step and lets the layer follow every wish; returns the wishes.
std::vector<int64_t> follow(const PeakConfig& peak, int64_t alignment, int64_t start,
                            const std::vector<int64_t>& demands) {
  CapacityConfig config = policy_config("peak");
  config.peak = peak;
  const auto policy = make(config);
  LayerHistory history(policy->history_steps());
  LayerFacts layer = facts(alignment, 4096, 256, start);
  std::vector<int64_t> wishes;
  for (const int64_t demand : demands) {
    history.push(demand);
    layer.capacity = policy->decide(history, layer).slots;
    wishes.push_back(layer.capacity);
  }
  return wishes;
}

TEST(PeakPolicy, GrowsAtOnce) {
  EXPECT_EQ(follow({4, 0, 3}, 8, 64, {64, 65, 200, 400}), (std::vector<int64_t>{64, 72, 200, 400}));
}

TEST(PeakPolicy, ShrinksAfterWindowAndPatience) {
  // The peak of 800 leaves the window of 2 at the third step; the wish is then lower for 3
  // decisions, and the third one shrinks.
  EXPECT_EQ(follow({2, 0, 3}, 8, 800, {800, 80, 80, 80, 80, 80}),
            (std::vector<int64_t>{800, 800, 800, 800, 80, 80}));
}

TEST(PeakPolicy, AHighDemandStartsThePatienceAnew) {
  EXPECT_EQ(follow({1, 0, 3}, 8, 800, {80, 80, 800, 80, 80, 80}),
            (std::vector<int64_t>{800, 800, 800, 800, 800, 80}));
}

TEST(PeakPolicy, PatienceOfOneShrinksAtOnce) {
  EXPECT_EQ(follow({1, 0, 1}, 8, 800, {80, 160, 8}), (std::vector<int64_t>{80, 160, 8}));
}

TEST(PeakPolicy, MarginIsAFractionOfTheDemandRoundedUp) {
  EXPECT_EQ(follow({4, 0.25, 3}, 8, 8, {100, 400}), (std::vector<int64_t>{128, 504}));
  EXPECT_EQ(follow({4, 0.1, 3}, 1, 8, {100}), (std::vector<int64_t>{110}));
}

TEST(PeakPolicy, NeverWantsMoreThanTheWorstCase) {
  EXPECT_EQ(follow({4, 0.5, 3}, 8, 8, {4000}), (std::vector<int64_t>{4096}));
}

TEST(PeakPolicy, RecordedSawTooth) {
  // Three teeth of 4 steps, then calm. With a window of a tooth the capacity keeps to the tips and
  // follows the falling ones only after 4 lower wishes.
  const std::vector<int64_t> demands{100, 200, 300, 400, 100, 200, 300, 400, 100, 150,
                                     200, 240, 100, 100, 100, 100, 100, 100, 100, 100};
  EXPECT_EQ(follow({4, 0, 4}, 8, 104, demands),
            (std::vector<int64_t>{104, 200, 304, 400, 400, 400, 400, 400, 400, 400,  //
                                  400, 400, 400, 400, 240, 240, 240, 240, 104, 104}));
}

TEST(PeakPolicy, KeepsOnAskingForLessWhenItIsNotFollowed) {
  CapacityConfig config = policy_config("peak");
  config.peak = {.window_steps = 1, .margin = 0, .shrink_patience = 2};
  const auto policy = make(config);
  LayerHistory history(1);
  history.push(80);
  const LayerFacts layer = facts(8, 4096, 256, 800);
  EXPECT_EQ(policy->decide(history, layer).slots, 800);
  EXPECT_EQ(policy->decide(history, layer).slots, 80);
  EXPECT_EQ(policy->decide(history, layer).slots, 80);
  // Once the capacity is another one, its patience is counted from the start.
  const LayerFacts grown = facts(8, 4096, 256, 900);
  EXPECT_EQ(policy->decide(history, grown).slots, 900);
  EXPECT_EQ(policy->decide(history, grown).slots, 80);
}

TEST(PeakPolicy, ReasonNamesDemandAndPatience) {
  CapacityConfig config = quick_peak();
  LayerHistory history(4);
  history.push(80);
  const Wanted wanted = make(config)->decide(history, facts(8, 4096, 256, 800));
  EXPECT_EQ(wanted.reason, "peak demand 80 of 1 steps, margin 0, lower for 1 of 3 decisions");
}

TEST(PeakPolicy, ARestoredPolicyContinuesWithTheSameWishes) {
  CapacityConfig config = policy_config("peak");
  config.peak = {.window_steps = 1, .margin = 0, .shrink_patience = 3};
  const auto policy = make(config);
  LayerHistory history(1);
  history.push(80);
  const LayerFacts layer = facts(8, 4096, 256, 800);
  policy->decide(history, layer);
  policy->decide(history, layer);
  const auto twin = make(config);
  twin->restore(policy->state());
  EXPECT_EQ(twin->decide(history, layer).slots, 80);
  EXPECT_EQ(make(config)->decide(history, layer).slots, 800);
}

}  // namespace
}  // namespace spillway::capacity
