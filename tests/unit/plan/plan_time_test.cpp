// Every rank of a group plans all ranks of it, on one core of the host: what that costs. The times
// are printed and recorded; the limits are far above them, for a slow or busy machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "spillway/core/choice.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/plan/score_order.h"

namespace spillway::plan {
namespace {

constexpr int64_t kAlignment = 128;
constexpr double kSlowMachine = 20;  // a limit is this many times the time that is wanted

struct TimeCase {
  const char* name;
  int64_t ep, experts_per_rank, tokens;  // tokens of each source, 8 choices each
  DropOrder order;
  bool overflow;
  double wanted_us;
};

CountMatrix uneven_matrix(const TimeCase& c) {
  const int64_t num_experts = c.ep * c.experts_per_rank;
  CountMatrix matrix{c.ep, num_experts,
                     std::vector<int64_t>(static_cast<size_t>(c.ep * num_experts))};
  const int64_t mean = c.tokens * 8 / num_experts;
  Rng rng(9);
  for (int64_t& count : matrix.counts) {
    count = mean / 2 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(mean)));
  }
  return matrix;
}

std::vector<RankPlan> plan_all(const CountMatrix& matrix, int64_t capacity, const DropRule& rule) {
  std::vector<RankPlan> plans;
  for (int64_t rank = 0; rank < matrix.ep; ++rank) {
    plans.push_back(plan_rank(matrix, rank, capacity, kAlignment, rule));
  }
  return plans;
}

// Even histograms of the rows of every rank: each cell's rows dealt over 256 bins.
std::vector<int32_t> dealt(const CountMatrix& matrix, int64_t rank,
                           const std::vector<int32_t>* coarse, int64_t boundary) {
  const int64_t experts = matrix.experts_per_rank();
  std::vector<int32_t> bins;
  for (int64_t cell = 0; cell < matrix.num_experts; ++cell) {
    const int64_t rows = coarse == nullptr
                             ? matrix.at(cell / experts, rank * experts + cell % experts)
                             : (*coarse)[static_cast<size_t>(cell * kScoreBins + boundary)];
    for (int64_t bin = 0; bin < kScoreBins; ++bin) {
      bins.push_back(static_cast<int32_t>(rows / kScoreBins + (bin < rows % kScoreBins ? 1 : 0)));
    }
  }
  return bins;
}

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// All ranks of the group, histograms at hand.
double time_score(const CountMatrix& matrix, int64_t capacity) {
  double us = 0;
  for (int64_t rank = 0; rank < matrix.ep; ++rank) {
    const std::vector<int32_t> coarse = dealt(matrix, rank, nullptr, 0);
    auto start = std::chrono::steady_clock::now();
    const int64_t boundary = score_boundary(matrix, rank, capacity, kAlignment, coarse);
    us += microseconds_since(start);
    const std::vector<int32_t> fine = dealt(matrix, rank, &coarse, boundary);
    start = std::chrono::steady_clock::now();
    plan_rank(matrix, rank, capacity, kAlignment,
              keep_by_score(matrix, rank, capacity, kAlignment, coarse, boundary, fine));
    us += microseconds_since(start);
  }
  return us;
}

class PlanTime : public testing::TestWithParam<TimeCase> {};

TEST_P(PlanTime, OfAllRanksOfAGroup) {
  const TimeCase& c = GetParam();
  const CountMatrix matrix = uneven_matrix(c);
  int64_t least = INT64_MAX, most = 0;
  for (int64_t rank = 0; rank < c.ep; ++rank) {
    least = std::min(least, demand_slots(matrix, rank, kAlignment));
    most = std::max(most, demand_slots(matrix, rank, kAlignment));
  }
  const int64_t capacity = c.overflow ? round_down(least * 7 / 10, kAlignment) : most;
  const DropRule rule{.order = c.order, .seed = 1, .step = 2};
  constexpr int kRounds = 5;
  double best_us = 1e12;
  for (int round = 0; round < kRounds; ++round) {
    double us = 0;
    if (c.order == DropOrder::kScore && c.overflow) {
      us = time_score(matrix, capacity);
    } else {
      const auto start = std::chrono::steady_clock::now();
      const std::vector<RankPlan> plans = plan_all(matrix, capacity, rule);
      us = microseconds_since(start);
      for (const RankPlan& plan : plans) ASSERT_EQ(plan.overflow(), c.overflow);
    }
    best_us = std::min(best_us, us);
  }
  std::printf("plans of %d ranks, %s: %.1f us, wanted %.0f us\n", static_cast<int>(c.ep), c.name,
              best_us, c.wanted_us);
  RecordProperty("microseconds", str(best_us));
  EXPECT_LT(best_us, c.wanted_us * kSlowMachine);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, PlanTime,
    testing::Values(TimeCase{"ep8_tail_fits", 8, 16, 32768, DropOrder::kTail, false, 20},
                    TimeCase{"ep8_tail_drops", 8, 16, 32768, DropOrder::kTail, true, 100},
                    TimeCase{"ep8_fair_drops", 8, 16, 32768, DropOrder::kFair, true, 100},
                    TimeCase{"ep8_random_drops", 8, 16, 32768, DropOrder::kRandom, true, 6000},
                    TimeCase{"ep8_score_drops", 8, 16, 32768, DropOrder::kScore, true, 1000},
                    TimeCase{"ep64_tail_fits", 64, 4, 8192, DropOrder::kTail, false, 150},
                    TimeCase{"ep64_tail_drops", 64, 4, 8192, DropOrder::kTail, true, 1000},
                    TimeCase{"ep64_fair_drops", 64, 4, 8192, DropOrder::kFair, true, 1000},
                    TimeCase{"ep64_random_drops", 64, 4, 8192, DropOrder::kRandom, true, 15000},
                    TimeCase{"ep64_score_drops", 64, 4, 8192, DropOrder::kScore, true, 10000}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway::plan
