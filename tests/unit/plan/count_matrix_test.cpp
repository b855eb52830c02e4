#include "spillway/plan/count_matrix.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/core/error.h"
#include "spillway/core/rng.h"

namespace spillway::plan {
namespace {

// Two ranks of two experts; rows are sources.
CountMatrix small_matrix() {
  return {2,
          4,
          {3, 0, 5, 1,  //
           1, 0, 4, 7}};
}

TEST(CountMatrix, IsSourceMajor) {
  const CountMatrix matrix = small_matrix();
  EXPECT_EQ(matrix.experts_per_rank(), 2);
  EXPECT_EQ(matrix.at(0, 2), 5);
  EXPECT_EQ(matrix.at(1, 0), 1);
}

TEST(CountMatrix, RoutedPerExpertSumsSources) {
  EXPECT_EQ(routed_per_expert(small_matrix(), 0), (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(routed_per_expert(small_matrix(), 1), (std::vector<int64_t>{9, 8}));
  EXPECT_EQ(recv_assignments(small_matrix(), 0), 4);
  EXPECT_EQ(recv_assignments(small_matrix(), 1), 17);
}

TEST(CountMatrix, DemandRoundsEachExpertAndGivesAnEmptyOneNothing) {
  EXPECT_EQ(demand_slots(small_matrix(), 0, 8), 8);
  EXPECT_EQ(demand_slots(small_matrix(), 1, 8), 16 + 8);
  EXPECT_EQ(demand_slots(small_matrix(), 1, 1), 17);
}

class DemandBruteForce : public testing::TestWithParam<int64_t> {};

// Tokens choose distinct experts one by one; every chosen assignment is counted where it goes and
// its zone opened slot by slot.
TEST_P(DemandBruteForce, EqualsCountingAssignments) {
  const int64_t alignment = GetParam();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const int64_t ep = 1 << rng.below(3);
    const int64_t num_experts = ep * (1 + static_cast<int64_t>(rng.below(4)));
    CountMatrix matrix{ep, num_experts,
                       std::vector<int64_t>(static_cast<size_t>(ep * num_experts))};
    std::vector<int64_t> rows(static_cast<size_t>(num_experts), 0);
    std::vector<int64_t> slots(static_cast<size_t>(num_experts), 0);
    for (int64_t source = 0; source < ep; ++source) {
      const uint64_t tokens = rng.below(60);  // 0 on some sources
      for (uint64_t token = 0; token < tokens; ++token) {
        for (int64_t expert = 0; expert < num_experts; ++expert) {
          if (rng.below(3) != 0) continue;
          const auto e = static_cast<size_t>(expert);
          ++matrix.counts[static_cast<size_t>(source * num_experts + expert)];
          if (rows[e]++ == slots[e]) slots[e] += alignment;
        }
      }
    }
    for (int64_t rank = 0; rank < ep; ++rank) {
      int64_t demand = 0;
      int64_t assignments = 0;
      for (int64_t local = 0; local < num_experts / ep; ++local) {
        demand += slots[static_cast<size_t>(rank * (num_experts / ep) + local)];
        assignments += rows[static_cast<size_t>(rank * (num_experts / ep) + local)];
      }
      EXPECT_EQ(demand_slots(matrix, rank, alignment), demand) << "seed " << seed;
      EXPECT_EQ(recv_assignments(matrix, rank), assignments) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Alignments, DemandBruteForce, testing::Values(1, 8, 128),
                         [](const auto& test) { return str("A", test.param); });

TEST(CountMatrix, RejectsBadShapesRanksAndCounts) {
  EXPECT_THROW(check_shape({0, 4, {}}), Error);
  EXPECT_THROW(check_shape({2, 0, {}}), Error);
  EXPECT_THROW(check_shape({2, 3, {1, 2, 3, 4, 5, 6}}), Error);
  EXPECT_THROW(check_shape({2, 4, {1, 2, 3}}), Error);
  EXPECT_NO_THROW(check_shape(small_matrix()));
  EXPECT_THROW(demand_slots(small_matrix(), 2, 1), Error);
  EXPECT_THROW(demand_slots(small_matrix(), -1, 1), Error);
  EXPECT_THROW(demand_slots(small_matrix(), 0, 6), Error);
  EXPECT_THROW(recv_assignments({1, 2, {1, -1}}, 0), Error);
}

TEST(CountMatrix, ANegativeCountIsNamed) {
  try {
    demand_slots({2, 4, {0, 0, 0, 0, 0, 0, 0, -3}}, 1, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("source 1, expert 3 is -3"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace spillway::plan
