// What is particular to the order fair: shares, ties, cost.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "spillway/core/rng.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::plan {
namespace {

DropRule fair_at(int64_t step) { return {.order = DropOrder::kFair, .step = step}; }

// One expert on one rank of interest; the others, one a rank, get nothing.
CountMatrix to_first_rank(const std::vector<int64_t>& counts) {
  const auto ep = static_cast<int64_t>(counts.size());
  CountMatrix matrix{ep, ep, std::vector<int64_t>(counts.size() * counts.size(), 0)};
  for (size_t source = 0; source < counts.size(); ++source) {
    matrix.counts[source * counts.size()] = counts[source];
  }
  return matrix;
}

struct ShareCase {
  const char* name;
  std::vector<int64_t> counts;
};

class FairShares : public testing::TestWithParam<ShareCase> {};

// With rows to the left of a common point x of every source's unit interval kept, a source keeps
// n_s x rows to within half a row: there is such an x for every capacity.
TEST_P(FairShares, AreEqualPartsToHalfARow) {
  const std::vector<int64_t>& counts = GetParam().counts;
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int64_t capacity = 0; capacity < total; ++capacity) {
    const RankPlan plan = plan_rank(to_first_rank(counts), 0, capacity, 1, fair_at(capacity));
    ASSERT_EQ(plan.token_counts[0], capacity);
    double least = 0, most = 1;  // bounds of x
    for (size_t source = 0; source < counts.size(); ++source) {
      const auto kept = static_cast<double>(plan.rows.kept[source]);
      const auto all = static_cast<double>(counts[source]);
      if (all == 0) continue;
      least = std::max(least, (kept - 0.5) / all);
      most = std::min(most, (kept + 0.5) / all);
    }
    ASSERT_LE(least, most) << "capacity " << capacity;
  }
}

TEST_P(FairShares, OfEqualSourcesDifferByAtMostOneRow) {
  const size_t ep = GetParam().counts.size();
  constexpr int64_t kRows = 37;
  const std::vector<int64_t> counts(ep, kRows);
  for (int64_t capacity = 0; capacity < kRows * static_cast<int64_t>(ep); ++capacity) {
    const RankPlan plan = plan_rank(to_first_rank(counts), 0, capacity, 1, fair_at(capacity));
    const auto [least, most] = std::minmax_element(plan.rows.kept.begin(), plan.rows.kept.end());
    ASSERT_LE(*most - *least, 1) << "capacity " << capacity;
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, FairShares,
                         testing::Values(ShareCase{"equal", {50, 50, 50, 50}},
                                         ShareCase{"one_large", {400, 7, 1, 3}},
                                         ShareCase{"multiples", {30, 60, 120, 240}},
                                         ShareCase{"some_empty", {0, 90, 0, 31}},
                                         ShareCase{"two", {101, 103}},
                                         ShareCase{"eight", {64, 1, 33, 20, 64, 63, 65, 2}}),
                         [](const auto& test) { return std::string(test.param.name); });

class FairTies : public testing::TestWithParam<int64_t> {};

// Four sources of three rows each: the keys are equal in fours, and the k-th of four goes to the
// source s with (s + step) mod 4 = k.
TEST_P(FairTies, RotateWithTheStep) {
  const int64_t step = GetParam();
  for (int64_t capacity = 0; capacity <= 12; ++capacity) {
    std::vector<int64_t> kept(4, 0);
    for (int64_t row = 0; row < capacity; ++row) {
      for (int64_t source = 0; source < 4; ++source) {
        if ((source + step) % 4 == row % 4) ++kept[static_cast<size_t>(source)];
      }
    }
    const RankPlan plan = plan_rank(to_first_rank({3, 3, 3, 3}), 0, capacity, 1, fair_at(step));
    EXPECT_EQ(plan.rows.kept, kept) << capacity;
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, FairTies, testing::Values(0, 1, 2, 3, 4, 1'000'003),
                         [](const auto& test) { return str("step_", test.param); });

TEST(FairPlan, WorkedExample) {
  // Keys: source 0 (2 rows) 1/4, 3/4; source 1 (4 rows) 1/8, 3/8, 5/8, 7/8. Source 1 has two rows
  // for each expert, source 0 one: kept in turn 1/8 (e0), 1/4 (e0), 3/8 (e0), 5/8 (e1), 3/4 (e1).
  const CountMatrix matrix{2,
                           4,
                           {1, 1, 0, 0,  //
                            2, 2, 0, 0}};
  EXPECT_EQ(plan_rank(matrix, 0, 1, 1, fair_at(0)).rows.kept, (std::vector<int64_t>{0, 0, 1, 0}));
  EXPECT_EQ(plan_rank(matrix, 0, 2, 1, fair_at(0)).rows.kept, (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(plan_rank(matrix, 0, 3, 1, fair_at(0)).rows.kept, (std::vector<int64_t>{1, 0, 2, 0}));
  EXPECT_EQ(plan_rank(matrix, 0, 4, 1, fair_at(0)).rows.kept, (std::vector<int64_t>{1, 0, 2, 1}));
  EXPECT_EQ(plan_rank(matrix, 0, 5, 1, fair_at(0)).rows.kept, (std::vector<int64_t>{1, 1, 2, 1}));
  // A = 2: expert 0 pads its three rows to 4 slots, so the 4th row of the order opens a new block.
  EXPECT_EQ(plan_rank(matrix, 0, 4, 2, fair_at(0)).rows.kept, (std::vector<int64_t>{1, 0, 2, 0}));
}

TEST(FairPlan, NoSourceLosesEverythingWhileOthersKeepHalf) {
  // Under tail the last sources would lose all of it.
  const RankPlan plan = plan_rank(to_first_rank({80, 80, 80, 80}), 0, 160, 8, fair_at(0));
  EXPECT_EQ(plan.rows.kept, (std::vector<int64_t>{40, 40, 40, 40}));
}

class FairHuge : public testing::TestWithParam<int64_t> {};

// Counts beyond what 64-bit products of two of them hold; anything that walks rows would never
// come back. The rows of source s are multiples of one base, so the shares are known.
TEST_P(FairHuge, CostsCellsAndNotRows) {
  const int64_t base = GetParam();
  const RankPlan plan =
      plan_rank(to_first_rank({2 * base, 4 * base, base, 9 * base}), 0, 8 * base, 1, fair_at(0));
  EXPECT_EQ(plan.token_counts[0], 8 * base);
  const std::vector<int64_t> halves{base, 2 * base, base / 2, 9 * base / 2};
  for (size_t source = 0; source < halves.size(); ++source) {
    EXPECT_NEAR(static_cast<double>(plan.rows.kept[source] - halves[source]), 0.0, 1.0) << source;
  }
}

INSTANTIATE_TEST_SUITE_P(Bases, FairHuge,
                         testing::Values(1'000'000, (int64_t{1} << 31) / 9, int64_t{1} << 31,
                                         int64_t{1'000'000'000'000}),
                         [](const auto& test) { return str("base_", test.param); });

TEST(FairPlan, ScalesWithTheCounts) {
  // 2^31 and more rows take wider products than fewer do: the same routing a thousand times as
  // large must keep the same parts, to a row.
  Rng rng(4);
  for (int round = 0; round < 200; ++round) {
    CountMatrix small{4, 8, std::vector<int64_t>(32)};
    for (int64_t& count : small.counts) count = static_cast<int64_t>(rng.below(9));
    constexpr int64_t kFactor = 1'000'000'000;
    CountMatrix large = small;
    for (int64_t& count : large.counts) count *= kFactor;
    const int64_t rows = recv_assignments(small, 2);
    const auto capacity = static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows + 1)));
    const RankPlan plan = plan_rank(large, 2, capacity * kFactor, 1, fair_at(round));
    int64_t kept = 0;
    for (int64_t source = 0; source < 4; ++source) {
      const int64_t all = small.at(source, 4) + small.at(source, 5);
      const int64_t its = plan.kept_at(source, 0) + plan.kept_at(source, 1);
      const double share = static_cast<double>(all) * static_cast<double>(capacity) /
                           std::max(1.0, static_cast<double>(rows));
      EXPECT_NEAR(static_cast<double>(its), share * kFactor, 3.0) << "round " << round;
      kept += its;
    }
    EXPECT_EQ(kept, capacity * kFactor);
  }
}

}  // namespace
}  // namespace spillway::plan
