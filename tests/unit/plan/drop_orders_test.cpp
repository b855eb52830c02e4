// What each drop order keeps, against the slow reference, on random routings.

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <tuple>
#include <vector>

#include "spillway/core/choice.h"
#include "spillway/core/error.h"
#include "spillway/plan/score_order.h"
#include "unit/plan/drop_reference.h"

namespace spillway::plan {
namespace {

using reference::Assignment;
using reference::KeptSet;
using reference::Routing;
using reference::Skew;

constexpr uint64_t kMatrices = 120;  // a case; each gives a plan a rank

// 16 bits, smaller for a higher gate.
uint64_t score_key(const Assignment& row) {
  const auto bits = std::bit_cast<uint32_t>(reference::round_to_bf16(row.gate)) >> 16;
  const uint32_t ascending = (bits & 0x8000u) != 0 ? ~bits & 0xffffu : bits | 0x8000u;
  return 0xffffu - ascending;
}

// [S, L, 256] of the rows whose key has `high` as its high byte, by the low one; -1: of all rows,
// by the high one.
std::vector<int32_t> histogram(const CountMatrix& matrix, const std::vector<Assignment>& rows,
                               int64_t high) {
  std::vector<int32_t> bins(static_cast<size_t>(matrix.num_experts * kScoreBins), 0);
  for (const Assignment& row : rows) {
    const auto key = static_cast<int64_t>(score_key(row));
    if (high >= 0 && key / kScoreBins != high) continue;
    const int64_t bin = high >= 0 ? key % kScoreBins : key / kScoreBins;
    const int64_t cell = row.source * matrix.experts_per_rank() + row.local;
    ++bins[static_cast<size_t>(cell * kScoreBins + bin)];
  }
  return bins;
}

RankPlan make_plan(const CountMatrix& matrix, int64_t rank, const std::vector<Assignment>& rows,
                   int64_t capacity, int64_t alignment, const DropRule& rule) {
  if (rule.order != DropOrder::kScore || demand_slots(matrix, rank, alignment) <= capacity) {
    return plan_rank(matrix, rank, capacity, alignment, rule);
  }
  const std::vector<int32_t> coarse = histogram(matrix, rows, -1);
  const int64_t boundary = score_boundary(matrix, rank, capacity, alignment, coarse);
  const std::vector<int32_t> fine = histogram(matrix, rows, boundary);
  return plan_rank(matrix, rank, capacity, alignment,
                   keep_by_score(matrix, rank, capacity, alignment, coarse, boundary, fine));
}

// The sums of a plan, from the set that is kept.
void expect_sums(const CountMatrix& matrix, const RankPlan& plan, const KeptSet& kept,
                 int64_t num_rows, int64_t alignment) {
  const int64_t experts_per_rank = matrix.experts_per_rank();
  std::vector<int64_t> cells(plan.rows.kept.size(), 0);
  std::vector<int64_t> experts(static_cast<size_t>(experts_per_rank), 0);
  for (const auto& [source, local, ordinal] : kept) {
    ++cells[static_cast<size_t>(source * experts_per_rank + local)];
    ++experts[static_cast<size_t>(local)];
  }
  ASSERT_EQ(plan.rows.kept, cells);
  ASSERT_EQ(plan.token_counts, experts);
  ASSERT_LE(plan.num_slots(), plan.capacity);
  ASSERT_EQ(plan.recv_assignments, num_rows);
  ASSERT_EQ(plan.dropped_assignments, num_rows - static_cast<int64_t>(kept.size()));
  ASSERT_EQ(plan.overflow(), plan.dropped_assignments > 0);
  ASSERT_EQ(plan.total_recv_tokens, demand_slots(matrix, plan.rank, alignment));
}

// Every row kept and the first that is not: more slots than there are.
void expect_one_more_does_not_fit(const std::vector<Assignment>& sorted, const RankPlan& plan,
                                  size_t prefix, int64_t alignment) {
  if (prefix == sorted.size()) return;
  std::vector<int64_t> experts = plan.token_counts;
  ++experts[static_cast<size_t>(sorted[prefix].local)];
  int64_t slots = 0;
  for (const int64_t rows : experts) slots += round_up(rows, alignment);
  ASSERT_GT(slots, plan.capacity);
}

using OrderParam = std::tuple<DropOrder, int64_t, Skew>;
class DropOrders : public testing::TestWithParam<OrderParam> {};

TEST_P(DropOrders, KeepWhatTheReferenceKeeps) {
  const auto& [order, alignment, skew] = GetParam();
  int plans = 0, overflows = 0;
  for (uint64_t seed = 0; seed < kMatrices; ++seed) {
    Rng rng(seed, 1000 + static_cast<uint64_t>(skew));
    const Routing routing = reference::random_routing(rng, {.gate_levels = 24}, skew);
    const CountMatrix& matrix = routing.matrix;
    const DropRule rule{.order = order,
                        .seed = rng.next(),
                        .step = static_cast<int64_t>(rng.below(1000)),
                        .micro_batch = static_cast<int64_t>(rng.below(4)),
                        .layer = static_cast<int64_t>(rng.below(8))};
    for (int64_t rank = 0; rank < matrix.ep; ++rank) {
      const int64_t capacity =
          reference::random_capacity(rng, demand_slots(matrix, rank, alignment), alignment);
      SCOPED_TRACE(str("seed ", seed, " ep ", matrix.ep, " E ", matrix.num_experts, " rank ", rank,
                       " capacity ", capacity, " step ", rule.step));
      const std::vector<Assignment> rows = routing.rows_of(rank);
      const RankPlan plan = make_plan(matrix, rank, rows, capacity, alignment, rule);

      std::vector<Assignment> sorted = rows;
      reference::sort_rows(matrix, rank, rule, sorted);
      const int64_t experts_per_rank = matrix.experts_per_rank();
      const size_t prefix =
          reference::longest_prefix(sorted, experts_per_rank, capacity, alignment);
      const KeptSet expected = reference::kept_set(sorted, prefix);
      const auto key_of = [&, &drop_order = order](const Assignment& row) {
        if (drop_order == DropOrder::kScore) return score_key(row);
        return reference::random_key(rule, rank * experts_per_rank + row.local, row);
      };
      ASSERT_EQ(reference::apply(plan.rows, rows, experts_per_rank, key_of), expected);
      expect_sums(matrix, plan, expected, static_cast<int64_t>(rows.size()), alignment);
      const bool has_keys = order == DropOrder::kRandom || order == DropOrder::kScore;
      ASSERT_EQ(plan.rows.by_key, has_keys && plan.overflow());
      expect_one_more_does_not_fit(sorted, plan, prefix, alignment);
      if (HasFatalFailure()) return;
      ++plans;
      overflows += plan.overflow() ? 1 : 0;
    }
  }
  // The generator must keep its promise of about half.
  EXPECT_GT(overflows, plans / 8);
  EXPECT_LT(overflows, plans * 3 / 4);
}

const char* skew_name(Skew skew) {
  constexpr const char* kNames[] = {"uniform", "hot_expert", "hot_rank", "unequal_sources",
                                    "one_source"};
  return kNames[static_cast<size_t>(skew)];
}

INSTANTIATE_TEST_SUITE_P(Random, DropOrders,
                         testing::Combine(testing::Values(DropOrder::kTail, DropOrder::kFair,
                                                          DropOrder::kRandom, DropOrder::kScore),
                                          testing::Values(1, 8, 128),
                                          testing::Values(Skew::kUniform, Skew::kHotExpert,
                                                          Skew::kHotRank, Skew::kUnequalSources,
                                                          Skew::kOneSource)),
                         [](const auto& test) {
                           return str(choice_name(kDropOrderChoices, std::get<0>(test.param)), "_A",
                                      std::get<1>(test.param), "_",
                                      skew_name(std::get<2>(test.param)));
                         });

class EachOrder : public testing::TestWithParam<DropOrder> {
 protected:
  // Both ranks overflow at a capacity of 64.
  const Routing routing_ = [] {
    Rng rng(5);
    Routing routing{{2, 4, {40, 31, 50, 8, 22, 60, 17, 45}}, {}};
    for (const int64_t count : routing.matrix.counts) {
      routing.gates.emplace_back();
      for (int64_t i = 0; i < count; ++i) {
        routing.gates.back().push_back(static_cast<float>(rng.uniform()));
      }
    }
    return routing;
  }();

  RankPlan plan(const CountMatrix& matrix, int64_t capacity) const {
    return make_plan(matrix, 1, routing_.rows_of(1), capacity, 8,
                     {.order = GetParam(), .seed = 3, .step = 5});
  }
};

TEST_P(EachOrder, GivesTheSamePlanTwice) {
  const RankPlan first = plan(routing_.matrix, 64), second = plan(routing_.matrix, 64);
  EXPECT_TRUE(first.overflow());
  EXPECT_EQ(first.rows.kept, second.rows.kept);
  EXPECT_EQ(first.rows.cut, second.rows.cut);
  EXPECT_EQ(first.rows.at_cut, second.rows.at_cut);
}

TEST_P(EachOrder, DoesNotLookAtOtherRanks) {
  CountMatrix other = routing_.matrix;
  other.counts[0] = 0;
  other.counts[5] = 1000;
  EXPECT_EQ(plan(routing_.matrix, 64).rows.kept, plan(other, 64).rows.kept);
}

TEST_P(EachOrder, KeepsNothingInNoSlots) {
  const RankPlan none = plan(routing_.matrix, 0);
  EXPECT_EQ(none.rows.kept, (std::vector<int64_t>(4, 0)));
  EXPECT_EQ(none.dropped_assignments, 120);
  EXPECT_EQ(none.num_slots(), 0);
}

TEST_P(EachOrder, KeepsMoreInMoreSlots) {
  std::vector<int64_t> kept(4, 0);
  for (int64_t capacity = 0; capacity <= 136; capacity += 8) {
    const RankPlan more = plan(routing_.matrix, capacity);
    for (size_t cell = 0; cell < kept.size(); ++cell) EXPECT_GE(more.rows.kept[cell], kept[cell]);
    kept = more.rows.kept;
  }
  EXPECT_EQ(kept, (std::vector<int64_t>{50, 8, 17, 45}));
}

TEST_P(EachOrder, NeedsNoOrderWithoutOverflow) {
  const RankPlan all = plan_rank(routing_.matrix, 1, 136, 8, DropRule{.order = GetParam()});
  EXPECT_EQ(all.rows.kept, (std::vector<int64_t>{50, 8, 17, 45}));
  EXPECT_FALSE(all.rows.by_key);
  EXPECT_TRUE(all.rows.at_cut.empty());
}

INSTANTIATE_TEST_SUITE_P(All, EachOrder,
                         testing::Values(DropOrder::kTail, DropOrder::kFair, DropOrder::kRandom,
                                         DropOrder::kScore),
                         [](const auto& test) {
                           return std::string(choice_name(kDropOrderChoices, test.param));
                         });

}  // namespace
}  // namespace spillway::plan
