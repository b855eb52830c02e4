// Plans under the tail order against a slow reference that walks assignment by assignment.

#include "spillway/plan/rank_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "spillway/core/choice.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"
#include "spillway/core/rng.h"

namespace spillway::plan {
namespace {

constexpr DropRule kTailRule{};

int64_t sum(const std::vector<int64_t>& v) {
  return std::accumulate(v.begin(), v.end(), int64_t{0});
}

struct Assignment {
  int64_t local_expert, source, ordinal;
  auto key() const { return std::tie(local_expert, source, ordinal); }
};

// Every assignment sent to the rank, in tail order.
std::vector<Assignment> in_tail_order(const CountMatrix& matrix, int64_t rank) {
  const int64_t experts_per_rank = matrix.experts_per_rank();
  std::vector<Assignment> rows;
  for (int64_t source = 0; source < matrix.ep; ++source) {
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      for (int64_t i = 0; i < matrix.at(source, rank * experts_per_rank + local); ++i) {
        rows.push_back({local, source, i});
      }
    }
  }
  std::sort(rows.begin(), rows.end(),
            [](const Assignment& a, const Assignment& b) { return a.key() < b.key(); });
  return rows;
}

// Length of the longest prefix whose padded zones fit: tries every length from none to all.
size_t longest_prefix(const std::vector<Assignment>& rows, int64_t experts_per_rank,
                      int64_t capacity, int64_t alignment) {
  size_t longest = 0;
  std::vector<int64_t> zone_rows(static_cast<size_t>(experts_per_rank), 0);
  for (size_t length = 1; length <= rows.size(); ++length) {
    ++zone_rows[static_cast<size_t>(rows[length - 1].local_expert)];
    int64_t slots = 0;
    for (const int64_t n : zone_rows) slots += round_up(n, alignment);
    if (slots <= capacity) longest = length;
  }
  return longest;
}

// The plan holds exactly the first `longest_prefix` rows, each in the slot that the layout says.
void expect_matches_reference(const CountMatrix& matrix, const std::vector<Assignment>& rows,
                              const RankPlan& plan, int64_t alignment) {
  const int64_t experts_per_rank = matrix.experts_per_rank();
  const size_t prefix = longest_prefix(rows, experts_per_rank, plan.capacity, alignment);
  std::vector<int64_t> kept(static_cast<size_t>(matrix.ep * experts_per_rank), 0);
  int64_t slot = 0;
  int64_t padding = 0;
  size_t next = 0;
  for (int64_t local = 0; local < experts_per_rank; ++local) {
    ASSERT_EQ(plan.zone_begin[static_cast<size_t>(local)], slot);
    int64_t zone_rows = 0;
    for (; next < prefix && rows[next].local_expert == local; ++next, ++slot, ++zone_rows) {
      const Assignment& row = rows[next];
      ASSERT_EQ(plan.source_begin(row.source, local) + row.ordinal, slot);
      ++kept[static_cast<size_t>(row.source * experts_per_rank + local)];
    }
    for (; slot % alignment != 0; ++slot) ++padding;
    ASSERT_EQ(plan.token_counts[static_cast<size_t>(local)], zone_rows);
    ASSERT_EQ(plan.slot_counts[static_cast<size_t>(local)],
              slot - plan.zone_begin[static_cast<size_t>(local)]);
  }
  ASSERT_EQ(plan.rows.kept, kept);
  ASSERT_EQ(plan.padding_slots, padding);
  ASSERT_EQ(plan.recv_assignments, static_cast<int64_t>(rows.size()));
  ASSERT_EQ(plan.dropped_assignments, static_cast<int64_t>(rows.size() - prefix));
}

// Section 1 of the contract.
void expect_identities(const CountMatrix& matrix, const RankPlan& plan, int64_t alignment) {
  ASSERT_EQ(plan.total_recv_tokens, demand_slots(matrix, plan.rank, alignment));
  ASSERT_EQ(plan.overflow(), plan.dropped_assignments > 0);
  ASSERT_LE(plan.num_slots(), plan.capacity);
  ASSERT_EQ(plan.num_slots() % alignment, 0);
  ASSERT_EQ(plan.num_slots() - plan.padding_slots, sum(plan.token_counts));
  ASSERT_EQ(plan.recv_assignments, sum(plan.token_counts) + plan.dropped_assignments);
  if (!plan.overflow()) {
    ASSERT_EQ(plan.total_recv_tokens, plan.num_slots());
  }
}

enum class Shape { kUniform, kSparse, kHotExpert, kHotRank, kOneSource };

struct MatrixCase {
  const char* name;
  Shape shape;
  int64_t ep, num_experts, most;  // `most`: bound on the entries of an ordinary cell
};

CountMatrix random_matrix(const MatrixCase& c, Rng& rng) {
  CountMatrix matrix{c.ep, c.num_experts,
                     std::vector<int64_t>(static_cast<size_t>(c.ep * c.num_experts))};
  const auto hot_expert = static_cast<int64_t>(rng.below(static_cast<uint64_t>(c.num_experts)));
  const int64_t experts_per_rank = c.num_experts / c.ep;
  for (int64_t source = 0; source < c.ep; ++source) {
    for (int64_t expert = 0; expert < c.num_experts; ++expert) {
      auto count = static_cast<int64_t>(rng.below(static_cast<uint64_t>(c.most + 1)));
      const bool hot_rank = expert / experts_per_rank == hot_expert / experts_per_rank;
      if (c.shape == Shape::kSparse && rng.below(3) != 0) count = 0;
      if (c.shape == Shape::kHotExpert) count = expert == hot_expert ? 6 * c.most : count / 4;
      if (c.shape == Shape::kHotRank) count = hot_rank ? 2 * count : 0;
      if (c.shape == Shape::kOneSource && source != hot_expert % c.ep) count = 0;
      matrix.counts[static_cast<size_t>(source * c.num_experts + expert)] = count;
    }
  }
  return matrix;
}

using TailParam = std::tuple<MatrixCase, int64_t>;
class TailAgainstReference : public testing::TestWithParam<TailParam> {};

TEST_P(TailAgainstReference, EveryCapacityFromNoneToEnough) {
  const auto& [matrix_case, alignment] = GetParam();
  constexpr int kMatrices = 250;
  int overflows = 0;
  for (int seed = 0; seed < kMatrices; ++seed) {
    Rng rng(static_cast<uint64_t>(seed), 77);
    const CountMatrix matrix = random_matrix(matrix_case, rng);
    const auto rank = static_cast<int64_t>(rng.below(static_cast<uint64_t>(matrix.ep)));
    const std::vector<Assignment> rows = in_tail_order(matrix, rank);
    const int64_t enough = demand_slots(matrix, rank, alignment) + alignment;
    for (int64_t capacity = 0; capacity <= enough; capacity += alignment) {
      SCOPED_TRACE(str("seed ", seed, " capacity ", capacity));
      const RankPlan plan = plan_rank(matrix, rank, capacity, alignment, kTailRule);
      ASSERT_EQ(plan.capacity, capacity);
      ASSERT_EQ(plan.rank, rank);
      expect_matches_reference(matrix, rows, plan, alignment);
      expect_identities(matrix, plan, alignment);
      overflows += plan.overflow() ? 1 : 0;
    }
  }
  EXPECT_GT(overflows, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Random, TailAgainstReference,
    testing::Combine(testing::Values(MatrixCase{"uniform", Shape::kUniform, 4, 8, 6},
                                     MatrixCase{"sparse", Shape::kSparse, 4, 16, 9},
                                     MatrixCase{"hot_expert", Shape::kHotExpert, 4, 12, 8},
                                     MatrixCase{"hot_rank", Shape::kHotRank, 2, 8, 5},
                                     MatrixCase{"one_source", Shape::kOneSource, 4, 8, 20},
                                     MatrixCase{"one_rank", Shape::kUniform, 1, 5, 12}),
                     testing::Values(1, 8, 128)),
    [](const auto& test) {
      return str(std::get<0>(test.param).name, "_A", std::get<1>(test.param));
    });

TEST(TailPlan, WorkedExample) {
  // Rank 1 of 2 owns experts 2 and 3; A = 4. Expert 2 gets 3 + 2, expert 3 gets 6 + 1 rows.
  const CountMatrix matrix{2,
                           4,
                           {0, 0, 3, 6,  //
                            9, 9, 2, 1}};
  const RankPlan plan = plan_rank(matrix, 1, 12, 4, kTailRule);
  EXPECT_EQ(plan.total_recv_tokens, 8 + 8);
  EXPECT_EQ(plan.rows.kept, (std::vector<int64_t>{3, 4, 2, 0}));
  EXPECT_EQ(plan.token_counts, (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(plan.slot_counts, (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(plan.zone_begin, (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(plan.dropped_assignments, 3);
  EXPECT_EQ(plan.padding_slots, 3);
  EXPECT_EQ(plan.source_begin(1, 0), 3);
  EXPECT_EQ(plan.source_begin(1, 1), 12);
}

TEST(TailPlan, ASourceCanLoseEverything) {
  const CountMatrix matrix{2,
                           2,
                           {8, 0,  //
                            5, 0}};
  const RankPlan plan = plan_rank(matrix, 0, 8, 8, kTailRule);
  EXPECT_EQ(plan.rows.kept, (std::vector<int64_t>{8, 0}));
  EXPECT_EQ(plan.dropped_assignments, 5);
}

TEST(TailPlan, NothingAfterTheFirstDropIsKept) {
  // Expert 1's single row would fit in the slots that expert 0 leaves, but it is not in the prefix.
  const CountMatrix matrix{1, 3, {9, 0, 1}};
  const RankPlan plan = plan_rank(matrix, 0, 8, 8, kTailRule);
  EXPECT_EQ(plan.token_counts, (std::vector<int64_t>{8, 0, 0}));
  EXPECT_EQ(plan.slot_counts, (std::vector<int64_t>{8, 0, 0}));
}

TEST(TailPlan, ZeroRowsNeedNoSlots) {
  const RankPlan plan = plan_rank({2, 4, std::vector<int64_t>(8, 0)}, 1, 0, 128, kTailRule);
  EXPECT_EQ(plan.num_slots(), 0);
  EXPECT_EQ(plan.total_recv_tokens, 0);
  EXPECT_FALSE(plan.overflow());
}

TEST(TailPlan, AFullFitHasNoSlackToSpare) {
  const CountMatrix matrix{1, 2, {3, 5}};
  EXPECT_FALSE(plan_rank(matrix, 0, 16, 8, kTailRule).overflow());
  EXPECT_TRUE(plan_rank(matrix, 0, 8, 8, kTailRule).overflow());
}

TEST(TailPlan, CostsCellsAndNotRows) {
  // 10^12 rows a cell: anything that walks rows would never come back.
  constexpr int64_t kRows = 1'000'000'000'000;
  const CountMatrix matrix{8, 128, std::vector<int64_t>(8 * 128, kRows)};
  const RankPlan plan = plan_rank(matrix, 3, 20 * kRows, 128, kTailRule);
  EXPECT_EQ(plan.recv_assignments, 8 * 16 * kRows);
  EXPECT_EQ(sum(plan.token_counts), 20 * kRows);
  EXPECT_EQ(plan.kept_at(3, 2), kRows);
  EXPECT_EQ(plan.kept_at(4, 2), 0);
}

TEST(RankPlan, RejectsBadCapacitiesAndRanks) {
  const CountMatrix matrix{1, 2, {3, 5}};
  EXPECT_THROW(plan_rank(matrix, 0, -8, 8, kTailRule), Error);
  EXPECT_THROW(plan_rank(matrix, 0, 12, 8, kTailRule), Error);
  EXPECT_THROW(plan_rank(matrix, 0, 12, 12, kTailRule), Error);
  EXPECT_THROW(plan_rank(matrix, 0, 0, int64_t{1} << 31, kTailRule), Error);
  EXPECT_THROW(plan_rank(matrix, 1, 8, 8, kTailRule), Error);
  EXPECT_THROW(plan_rank({1, 2, {3, int64_t{1} << 44}}, 0, 8, 8, kTailRule), Error);
  EXPECT_THROW(plan_rank({2, 2, {3, 5}}, 0, 8, 8, kTailRule), Error);
}

}  // namespace
}  // namespace spillway::plan
