// What is particular to the order random: what the hash depends on, and that it is even.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "spillway/core/rng.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::plan {
namespace {

constexpr DropRule kRule{
    .order = DropOrder::kRandom, .seed = 11, .step = 22, .micro_batch = 1, .layer = 3};

CountMatrix full_matrix(int64_t count) { return {4, 8, std::vector<int64_t>(32, count)}; }

TEST(HashChain, IsABijectionOfTheValueInSmall) {
  std::set<uint64_t> seen;
  for (uint64_t value = 0; value < 10'000; ++value) seen.insert(hash_chain(7, value));
  EXPECT_EQ(seen.size(), 10'000u);
}

TEST(HashChain, DependsOnTheOrderOfTheWords) {
  EXPECT_NE(hash_chain(hash_chain(0, 1), 2), hash_chain(hash_chain(0, 2), 1));
  EXPECT_NE(hash_chain(0, 0), 0u);
  static_assert(hash_chain(1, 2) == hash_chain(1, 2));
}

TEST(RandomOrder, KeysAreTheSameInEveryBuild) {
  // Written down once: what a run drops must not change under the user's feet.
  EXPECT_EQ(random_cell_state(kRule, 5, 2), 0x9a88d76843fe7f4cULL);
  EXPECT_EQ(hash_chain(random_cell_state(kRule, 5, 2), 9), 0x57a6b515ae8e076cULL);
}

struct FieldCase {
  const char* name;
  std::function<void(DropRule&)> change;
};

class RandomFields : public testing::TestWithParam<FieldCase> {};

TEST_P(RandomFields, ChangeWhatIsKept) {
  DropRule other = kRule;
  GetParam().change(other);
  const CountMatrix matrix = full_matrix(100);
  const KeptRows a = plan_rank(matrix, 1, 400, 8, kRule).rows;
  const KeptRows b = plan_rank(matrix, 1, 400, 8, other).rows;
  EXPECT_NE(a.cut, b.cut);
  EXPECT_NE(a.kept, b.kept);
}

TEST_P(RandomFields, ChangeNothingWithoutOverflow) {
  DropRule other = kRule;
  GetParam().change(other);
  const CountMatrix matrix = full_matrix(100);
  const KeptRows rows = plan_rank(matrix, 1, 800, 8, other).rows;
  EXPECT_EQ(rows.kept, (std::vector<int64_t>(8, 100)));
  EXPECT_FALSE(rows.by_key);
}

INSTANTIATE_TEST_SUITE_P(Each, RandomFields,
                         testing::Values(FieldCase{"seed", [](DropRule& r) { ++r.seed; }},
                                         FieldCase{"step", [](DropRule& r) { ++r.step; }},
                                         FieldCase{"micro_batch",
                                                   [](DropRule& r) { ++r.micro_batch; }},
                                         FieldCase{"layer", [](DropRule& r) { ++r.layer; }}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(RandomOrder, RanksOfEqualCountsKeepDifferentRows) {
  const CountMatrix matrix = full_matrix(100);
  EXPECT_NE(plan_rank(matrix, 0, 400, 8, kRule).rows.cut,
            plan_rank(matrix, 1, 400, 8, kRule).rows.cut);
}

TEST(RandomOrder, KeepsAlikeOfEveryCell) {
  // 8 cells of 10,000 rows, half of all kept: a cell keeps 5,000 with a standard deviation of 50.
  // Six of those: fails once in 10^8 cells, and always for a hash that favours one.
  constexpr int64_t kRows = 10'000;
  constexpr double kSigmas = 6;
  const RankPlan plan = plan_rank(full_matrix(kRows), 2, 4 * kRows, 1, kRule);
  EXPECT_EQ(plan.dropped_assignments, 4 * kRows);
  for (const int64_t kept : plan.rows.kept) {
    EXPECT_NEAR(static_cast<double>(kept), kRows / 2.0, kSigmas * std::sqrt(kRows) / 2);
  }
  EXPECT_NEAR(std::ldexp(static_cast<double>(plan.rows.cut), -64), 0.5,
              kSigmas / 2 / std::sqrt(8.0 * kRows));
}

TEST(RandomOrder, KeepsAsManyRowsAsThereAreSlots) {
  // The planner looks for the cut where even keys would put it. Enough calls that it misses a few
  // times, to either side: three standard deviations, once in 400.
  constexpr int64_t kRows = 50, kCapacity = 200, kCalls = 3000;
  const CountMatrix matrix = full_matrix(kRows);
  for (int64_t step = 0; step < kCalls; ++step) {
    DropRule rule = kRule;
    rule.step = step;
    const RankPlan plan = plan_rank(matrix, 3, kCapacity, 1, rule);
    int64_t below = 0, at = 0;
    for (int64_t cell = 0; cell < 8; ++cell) {
      const uint64_t state = random_cell_state(rule, 6 + cell % 2, cell / 2);
      for (uint64_t ordinal = 0; ordinal < kRows; ++ordinal) {
        below += hash_chain(state, ordinal) < plan.rows.cut ? 1 : 0;
        at += hash_chain(state, ordinal) == plan.rows.cut ? 1 : 0;
      }
    }
    ASSERT_EQ(plan.num_slots(), kCapacity) << "step " << step;
    ASSERT_EQ(below, kCapacity) << "step " << step;
    ASSERT_EQ(at, 1) << "step " << step;
  }
}

}  // namespace
}  // namespace spillway::plan
