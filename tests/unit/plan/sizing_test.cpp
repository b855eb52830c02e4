// The sizing functions against brute force: every way to route N tokens, token by token.
// N tokens of the group, K = top_k, L = experts per rank, A = alignment.

#include "spillway/plan/sizing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {
namespace {

using Counts = std::vector<int64_t>;

// All vectors of assignments per local expert that N tokens can cause: each token picks any set of
// at most K of the L local experts (the rest of its choices go elsewhere, or are -1).
std::set<Counts> reachable_counts(int64_t tokens, int64_t top_k, int64_t experts) {
  std::set<Counts> reached{Counts(static_cast<size_t>(experts), 0)};
  for (int64_t token = 0; token < tokens; ++token) {
    std::set<Counts> next;
    for (const Counts& counts : reached) {
      for (uint32_t picked = 0; picked < (1u << experts); ++picked) {
        if (std::popcount(picked) > top_k) continue;
        Counts more = counts;
        for (int64_t e = 0; e < experts; ++e) more[static_cast<size_t>(e)] += (picked >> e) & 1;
        next.insert(more);
      }
    }
    reached = std::move(next);
  }
  return reached;
}

int64_t padded_sum(const Counts& counts, int64_t alignment) {
  int64_t slots = 0;
  for (const int64_t count : counts) {
    int64_t zone = 0;
    while (zone < count) zone += alignment;
    slots += zone;
  }
  return slots;
}

struct Layout {
  int64_t top_k;
  int64_t experts_per_rank;
  int64_t max_tokens;
};

using BruteForceParam = std::tuple<Layout, int64_t>;
class WorstCaseBruteForce : public testing::TestWithParam<BruteForceParam> {};

TEST_P(WorstCaseBruteForce, IsReachedAndNeverExceeded) {
  const auto& [layout, alignment] = GetParam();
  for (int64_t tokens = 0; tokens <= layout.max_tokens; ++tokens) {
    int64_t largest = 0;
    for (const Counts& counts : reachable_counts(tokens, layout.top_k, layout.experts_per_rank)) {
      largest = std::max(largest, padded_sum(counts, alignment));
    }
    EXPECT_EQ(worst_case_slots(tokens, layout.top_k, layout.experts_per_rank, alignment), largest)
        << "N = " << tokens;
  }
}

std::string brute_force_name(const testing::TestParamInfo<BruteForceParam>& test) {
  const auto& [layout, alignment] = test.param;
  return str("K", layout.top_k, "_L", layout.experts_per_rank, "_A", alignment);
}

INSTANTIATE_TEST_SUITE_P(Small, WorstCaseBruteForce,
                         testing::Combine(testing::Values(Layout{1, 1, 18}, Layout{1, 2, 18},
                                                          Layout{2, 2, 18}, Layout{1, 3, 14},
                                                          Layout{2, 3, 12}, Layout{3, 3, 12},
                                                          Layout{4, 2, 18}, Layout{2, 4, 7}),
                                          testing::Values(1, 2, 8)),
                         brute_force_name);

class BalancedBruteForce : public testing::TestWithParam<int64_t> {};

// Balanced: N * K assignments dealt one by one over the experts; the fullest rank's demand.
TEST_P(BalancedBruteForce, IsTheFullestRankOfADealtRouting) {
  const int64_t alignment = GetParam();
  for (const int64_t experts_per_rank : {1, 2, 4}) {
    for (const int64_t ep : {1, 2, 4}) {
      const int64_t num_experts = ep * experts_per_rank;
      for (int64_t top_k = 1; top_k <= std::min<int64_t>(num_experts, 3); ++top_k) {
        for (int64_t tokens = 0; tokens <= 40; ++tokens) {
          Counts dealt(static_cast<size_t>(num_experts), 0);
          for (int64_t i = 0; i < tokens * top_k; ++i) {
            ++dealt[static_cast<size_t>(i % num_experts)];
          }
          // Every expert of the rank as full as the fullest, unless no routing does that.
          const Counts full(static_cast<size_t>(experts_per_rank), dealt[0]);
          const int64_t expected =
              std::min(padded_sum(full, alignment),
                       worst_case_slots(tokens, top_k, experts_per_rank, alignment));
          EXPECT_EQ(balanced_slots(tokens, top_k, num_experts, experts_per_rank, alignment),
                    expected)
              << "N " << tokens << " K " << top_k << " E " << num_experts << " ep " << ep;
          EXPECT_GE(expected,
                    padded_sum(Counts(dealt.begin(), dealt.begin() + experts_per_rank), alignment));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Alignments, BalancedBruteForce, testing::Values(1, 2, 8),
                         [](const auto& test) { return str("A", test.param); });

TEST(Sizing, KnownValues) {
  // 8 ranks of 4096 tokens, K 8, E 128, L 16, A 128.
  EXPECT_EQ(balanced_slots(32768, 8, 128, 16, 128), 16 * 2048);
  EXPECT_EQ(worst_case_slots(32768, 8, 16, 128), 32768 * 8 + 15 * 128);
  // One rank holds all: balanced and worst case differ by padding only.
  EXPECT_EQ(worst_case_slots(100, 2, 8, 1), 200);
  EXPECT_EQ(balanced_slots(100, 2, 8, 8, 1), 200);
}

TEST(Sizing, RejectsNonsense) {
  EXPECT_THROW(worst_case_slots(-1, 1, 1, 1), Error);
  EXPECT_THROW(worst_case_slots(1, -1, 1, 1), Error);
  EXPECT_THROW(worst_case_slots(1, 1, 0, 1), Error);
  EXPECT_THROW(worst_case_slots(1, 1, 1, 3), Error);
  EXPECT_THROW(worst_case_slots(1, 1, 1, 0), Error);
  EXPECT_THROW(worst_case_slots(INT64_MAX / 2, 4, 4, 1), Error);
  EXPECT_THROW(balanced_slots(1, 1, 2, 4, 1), Error);
}

struct ClampCase {
  const char* name;
  int64_t slots, min_slots, worst_case, alignment, expected;
};

class ClampCapacity : public testing::TestWithParam<ClampCase> {};

TEST_P(ClampCapacity, Gives) {
  const ClampCase& c = GetParam();
  EXPECT_EQ(clamp_capacity(c.slots, c.min_slots, c.worst_case, c.alignment), c.expected);
}

INSTANTIATE_TEST_SUITE_P(
    Bounds, ClampCapacity,
    testing::Values(ClampCase{"inside", 16, 0, 64, 8, 16}, ClampCase{"rounds_up", 17, 0, 64, 8, 24},
                    ClampCase{"at_least_the_alignment", 0, 0, 64, 8, 8},
                    ClampCase{"negative_wish", -5, 0, 64, 8, 8},
                    ClampCase{"min_slots_rounded_up", 8, 25, 64, 8, 32},
                    ClampCase{"worst_case_bounds_the_wish", 1000, 0, 64, 8, 64},
                    ClampCase{"worst_case_beats_min_slots", 8, 1000, 64, 8, 64},
                    ClampCase{"alignment_off", 13, 3, 64, 1, 13},
                    ClampCase{"huge_wish", INT64_MAX, 0, 64, 8, 64},
                    ClampCase{"huge_minimum", 1, INT64_MAX, 64, 8, 64}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Sizing, ClampRejectsAWorstCaseOffTheAlignment) {
  EXPECT_THROW(clamp_capacity(8, 0, 63, 8), Error);
  EXPECT_THROW(clamp_capacity(8, 0, 64, 12), Error);
}

}  // namespace
}  // namespace spillway::plan
