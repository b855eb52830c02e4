#include "spillway/capacity/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "spillway/capacity/policy_table.h"
#include "spillway/core/error.h"
#include "unit/capacity/support.h"

namespace spillway::capacity {
namespace {

constexpr int64_t kAlignment = 8;
constexpr size_t kLineLimit = 300;  // the documented bound on a config error

// One wrong value: what to change, the path that must be named, what the text must say.
struct BadCase {
  const char* name;
  void (*spoil)(CapacityConfig&);
  const char* path;
  const char* says;
};

class CheckRejects : public testing::TestWithParam<BadCase> {};

TEST_P(CheckRejects, NamingPathValueAndWhatIsAllowed) {
  CapacityConfig config;
  ASSERT_TRUE(check(config, kAlignment).empty());
  GetParam().spoil(config);
  const std::vector<Problem> problems = check(config, kAlignment);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, GetParam().path);
  EXPECT_NE(problems[0].text.find(GetParam().says), std::string::npos) << problems[0].text;
  EXPECT_NE(problems[0].text.find("allowed: "), std::string::npos) << problems[0].text;
  EXPECT_LT(problems[0].path.size() + problems[0].text.size(), kLineLimit);
}

using C = CapacityConfig;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const BadCase kBadCases[] = {
    {"unknown_policy", [](C& c) { c.policy = "pique"; }, "capacity.policy",
     "is \"pique\"; allowed: worst_case, fixed, factor, peak"},
    {"empty_policy", [](C& c) { c.policy = ""; }, "capacity.policy", "is \"\"; allowed: worst"},
    {"long_policy", [](C& c) { c.policy = std::string(1000, 'x'); }, "capacity.policy", "xxx..."},
    {"policy_quantile", [](C& c) { c.policy = "quantile"; }, "capacity.policy",
     "not in this version"},
    {"policy_ewma", [](C& c) { c.policy = "ewma"; }, "capacity.policy", "not in this version"},
    {"policy_aimd", [](C& c) { c.policy = "aimd"; }, "capacity.policy", "not in this version"},
    {"policy_tutel", [](C& c) { c.policy = "tutel"; }, "capacity.policy", "not in this version"},
    {"policy_megatron", [](C& c) { c.policy = "megatron"; }, "capacity.policy",
     "not in this version"},
    {"policy_budget", [](C& c) { c.policy = "budget"; }, "capacity.policy", "not in this version"},
    {"policy_cost", [](C& c) { c.policy = "cost"; }, "capacity.policy", "not in this version"},
    {"policy_oracle", [](C& c) { c.policy = "oracle"; }, "capacity.policy", "simulator only"},
    {"policy_oracle_fixed", [](C& c) { c.policy = "oracle_fixed"; }, "capacity.policy",
     "simulator only"},
    {"fixed_off_alignment",
     [](C& c) {
       c.policy = "fixed";
       c.fixed.slots = 100;
     },
     "capacity.fixed.slots", "is 100; allowed: a positive multiple of moe.alignment = 8"},
    {"fixed_zero",
     [](C& c) {
       c.policy = "fixed";
       c.fixed.slots = 0;
     },
     "capacity.fixed.slots", "is 0;"},
    {"fixed_negative", [](C& c) { c.fixed.slots = -8; }, "capacity.fixed.slots", "is -8;"},
    {"factor_zero", [](C& c) { c.factor.factor = 0; }, "capacity.factor.factor", "is 0;"},
    {"factor_negative", [](C& c) { c.factor.factor = -1.5; }, "capacity.factor.factor", "is -1.5;"},
    {"factor_nan", [](C& c) { c.factor.factor = kNan; }, "capacity.factor.factor", "nan"},
    {"factor_infinite", [](C& c) { c.factor.factor = kInf; }, "capacity.factor.factor", "inf"},
    {"window_zero", [](C& c) { c.peak.window_steps = 0; }, "capacity.peak.window_steps", "is 0;"},
    {"window_unbounded", [](C& c) { c.peak.window_steps = kMaxWindowSteps + 1; },
     "capacity.peak.window_steps", "1 to 100000"},
    {"margin_negative", [](C& c) { c.peak.margin = -0.1; }, "capacity.peak.margin", "is -0.1;"},
    {"margin_nan", [](C& c) { c.peak.margin = kNan; }, "capacity.peak.margin", "nan"},
    {"patience_zero", [](C& c) { c.peak.shrink_patience = 0; }, "capacity.peak.shrink_patience",
     "is 0;"},
    {"initial_zero",
     [](C& c) {
       c.initial = {false, 0};
     },
     "capacity.initial.factor", "is 0;"},
    {"warmup_negative", [](C& c) { c.warmup_steps = -1; }, "capacity.warmup_steps", "is -1;"},
    {"interval_zero", [](C& c) { c.interval = 0; }, "capacity.interval", "is 0;"},
    {"min_slots_negative", [](C& c) { c.min_slots = -1; }, "capacity.min_slots", "is -1;"},
    {"max_bytes_negative", [](C& c) { c.max_bytes = -1; }, "capacity.max_bytes", "is -1;"},
    {"grow_margin_negative", [](C& c) { c.grow_margin = -1; }, "capacity.grow_margin", "is -1;"},
    {"grow_margin_infinite", [](C& c) { c.grow_margin = kInf; }, "capacity.grow_margin", "inf"},
};

INSTANTIATE_TEST_SUITE_P(Keys, CheckRejects, testing::ValuesIn(kBadCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Check, EveryPolicyRunsFromItsNameAlone) {
  for (const PolicyEntry& entry : policy_table()) {
    EXPECT_TRUE(check(policy_config(std::string(entry.name)), kAlignment).empty()) << entry.name;
  }
}

TEST(Check, BoundaryValuesAreGood) {
  CapacityConfig config = policy_config("fixed");
  config.fixed.slots = kAlignment;
  config.peak = {.window_steps = 1, .margin = 0, .shrink_patience = 1};
  config.warmup_steps = 0;
  config.grow_margin = 0;
  config.initial = {.worst_case = false, .factor = 0.5};
  EXPECT_TRUE(check(config, kAlignment).empty());
  config.peak.window_steps = kMaxWindowSteps;
  EXPECT_TRUE(check(config, kAlignment).empty());
}

TEST(Check, AlignmentBindsFixedSlotsOnlyWhenTheyAreInForce) {
  CapacityConfig config;
  config.fixed.slots = 100;
  EXPECT_TRUE(check(config, kAlignment).empty());
  config.policy = "fixed";
  EXPECT_EQ(check(config, kAlignment).size(), 1u);
  EXPECT_TRUE(check(config, 4).empty());
}

TEST(Check, ReportsAllProblems) {
  CapacityConfig config;
  config.policy = "none";
  config.interval = 0;
  config.min_slots = -1;
  EXPECT_EQ(check(config, kAlignment).size(), 3u);
}

struct WarningCase {
  const char* name;
  const char* policy;
  int64_t slots;
  double factor;
  OnOverflow on_overflow;
  int64_t ep;
  const char* path;  // "" = no warning
};

class CheckWarns : public testing::TestWithParam<WarningCase> {};

TEST_P(CheckWarns, WhenTheSettingIsProbablyNotMeant) {
  constexpr int64_t kBalanced = 512;
  const WarningCase& c = GetParam();
  CapacityConfig config = policy_config(c.policy);
  config.fixed.slots = c.slots;
  config.factor.factor = c.factor;
  config.on_overflow = c.on_overflow;
  ASSERT_TRUE(check(config, kAlignment).empty());
  const std::vector<Problem> warnings = check_warnings(config, kBalanced, c.ep);
  if (std::string(c.path).empty()) {
    EXPECT_TRUE(warnings.empty()) << warnings[0].path << " " << warnings[0].text;
  } else {
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0].path, c.path);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CheckWarns,
    testing::Values(
        WarningCase{"fixed_below_balanced", "fixed", 504, 1, OnOverflow::kDrop, 2,
                    "capacity.fixed.slots"},
        WarningCase{"fixed_at_balanced", "fixed", 512, 1, OnOverflow::kDrop, 2, ""},
        WarningCase{"fixed_unused", "worst_case", 8, 1, OnOverflow::kFail, 2, ""},
        WarningCase{"factor_below_one", "factor", 8, 0.9, OnOverflow::kDrop, 2,
                    "capacity.factor.factor"},
        WarningCase{"factor_of_one", "factor", 8, 1, OnOverflow::kDrop, 2, ""},
        WarningCase{"fixed_at_ep1_fails", "fixed", 512, 1, OnOverflow::kFail, 1, "capacity.policy"},
        WarningCase{"fixed_at_ep1_drops", "fixed", 512, 1, OnOverflow::kDrop, 1, ""},
        WarningCase{"peak_at_ep1", "peak", 512, 1, OnOverflow::kDrop, 1, "capacity.policy"},
        WarningCase{"worst_case_at_ep1", "worst_case", 512, 1, OnOverflow::kFail, 1, ""}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Check, RejectsAnAlignmentThatIsNoPowerOfTwo) { EXPECT_THROW(check({}, 12), Error); }

}  // namespace
}  // namespace spillway::capacity
