#include "spillway/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::optim {
namespace {

// All values below are sums of powers of two, so that linear parts are exact.
constexpr double kLr = 1.0;
constexpr double kMinLr = 0.25;
// cos(pi * x) is inexact for most x: a few units in the last place of lr.
constexpr double kCosineTolerance = 4 * std::numeric_limits<double>::epsilon();

OptimConfig config_of(Schedule schedule, int64_t warmup) {
  OptimConfig config;
  config.schedule = schedule;
  config.lr = kLr;
  config.min_lr = kMinLr;
  config.warmup_steps = warmup;
  return config;
}

struct Case {
  std::string name;
  Schedule schedule;
  int64_t warmup;
  int64_t total;
  int64_t step;
  double expected;
};

class LearningRate : public testing::TestWithParam<Case> {};

TEST_P(LearningRate, HasTheValueOfTheTable) {
  const Case& c = GetParam();
  const double tolerance = c.schedule == Schedule::kCosine ? kCosineTolerance : 0.0;
  EXPECT_NEAR(learning_rate(config_of(c.schedule, c.warmup), c.step, c.total), c.expected,
              tolerance);
}

constexpr Schedule kConstant = Schedule::kConstant;
constexpr Schedule kCosine = Schedule::kCosine;
constexpr Schedule kWsd = Schedule::kWsd;

const std::vector<Case> kCases{
    {"warmup_first", kConstant, 8, 100, 1, 0.125},
    {"warmup_middle", kConstant, 8, 100, 6, 0.75},
    {"warmup_last_is_the_peak", kConstant, 8, 100, 8, 1.0},
    {"warmup_under_cosine", kCosine, 4, 100, 3, 0.75},
    {"warmup_under_wsd", kWsd, 4, 100, 3, 0.75},
    {"constant_after_warmup", kConstant, 8, 100, 9, 1.0},
    {"constant_last", kConstant, 8, 100, 100, 1.0},
    {"constant_without_warmup", kConstant, 0, 100, 1, 1.0},
    {"cosine_peak", kCosine, 4, 12, 4, 1.0},
    {"cosine_quarter", kCosine, 4, 12, 6, 0.25 + 0.75 * (0.5 + std::sqrt(2.0) / 4)},
    {"cosine_half", kCosine, 4, 12, 8, 0.625},
    {"cosine_third_quarter", kCosine, 4, 12, 10, 0.25 + 0.75 * (0.5 - std::sqrt(2.0) / 4)},
    {"cosine_last", kCosine, 4, 12, 12, 0.25},
    {"cosine_past_the_end", kCosine, 4, 12, 40, 0.25},
    {"cosine_no_warmup_starts_at_peak", kCosine, 0, 9, 1, 1.0},
    {"cosine_no_warmup_half", kCosine, 0, 9, 5, 0.625},
    {"cosine_one_warmup_step_as_none", kCosine, 1, 9, 5, 0.625},
    {"wsd_stable", kWsd, 4, 20, 5, 1.0},
    {"wsd_last_stable_step", kWsd, 4, 20, 16, 1.0},
    {"wsd_first_decay_step", kWsd, 4, 20, 17, 0.8125},
    {"wsd_half_decayed", kWsd, 4, 20, 18, 0.625},
    {"wsd_last", kWsd, 4, 20, 20, 0.25},
    {"wsd_past_the_end", kWsd, 4, 20, 21, 0.25},
    {"wsd_fifth_rounds_up", kWsd, 0, 16, 13, 0.8125},
    {"wsd_short_run_decays_in_one_step", kWsd, 0, 3, 2, 1.0},
    {"wsd_short_run_last", kWsd, 0, 3, 3, 0.25},
    {"wsd_warmup_into_the_decay", kWsd, 18, 20, 19, 0.625},
    {"wsd_warmup_into_the_decay_last", kWsd, 18, 20, 20, 0.25},
    {"warmup_is_the_run", kCosine, 4, 4, 4, 1.0},
    {"warmup_longer_than_the_run", kCosine, 8, 4, 4, 0.5},
    {"warmup_longer_than_the_run_wsd", kWsd, 8, 4, 4, 0.5},
    {"warmup_longer_than_the_run_past_the_end", kConstant, 8, 4, 6, 0.5},
    {"one_step_cosine", kCosine, 0, 1, 1, 1.0},
    {"one_step_wsd", kWsd, 0, 1, 1, 1.0},
    {"one_step_of_a_warmup", kWsd, 16, 1, 1, 0.0625},
};

INSTANTIATE_TEST_SUITE_P(Table, LearningRate, testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

class EverySchedule : public testing::TestWithParam<Schedule> {};

TEST_P(EverySchedule, RisesToThePeakThenNeverRises) {
  constexpr int64_t kWarmup = 7;
  constexpr int64_t kTotal = 53;
  const OptimConfig config = config_of(GetParam(), kWarmup);
  for (int64_t step = 2; step <= kTotal; ++step) {
    const double before = learning_rate(config, step - 1, kTotal);
    const double now = learning_rate(config, step, kTotal);
    if (step <= kWarmup) {
      EXPECT_GT(now, before) << step;
    } else {
      EXPECT_LE(now, before) << step;
      EXPECT_GE(now, kMinLr) << step;
    }
  }
}

TEST_P(EverySchedule, EndsAreExactForAnyRates) {
  OptimConfig config = config_of(GetParam(), 20);
  config.lr = 3e-4;
  config.min_lr = 1.7e-5;
  EXPECT_EQ(learning_rate(config, 20, 1000), config.lr);
  const bool decays = GetParam() != Schedule::kConstant;
  EXPECT_EQ(learning_rate(config, 1000, 1000), decays ? config.min_lr : config.lr);
}

TEST_P(EverySchedule, RefusesStepsThatDoNotExist) {
  const OptimConfig config = config_of(GetParam(), 4);
  EXPECT_THROW(learning_rate(config, 0, 10), Error);
  EXPECT_THROW(learning_rate(config, 1, 0), Error);
  EXPECT_THROW(learning_rate(config_of(GetParam(), -1), 1, 10), Error);
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule, testing::Values(kConstant, kCosine, kWsd),
                         [](const auto& test) {
                           return std::string(
                               kScheduleChoices[static_cast<size_t>(test.param)].first);
                         });

}  // namespace
}  // namespace spillway::optim
