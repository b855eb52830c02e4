// What is particular to the order score, and the plan of rows that the caller gives.

#include "spillway/plan/score_order.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::plan {
namespace {

// Rows of rank 0 by their keys.
struct Scores {
  CountMatrix matrix;
  std::vector<std::vector<int>> keys;  // [S, L] cells, each in token order

  std::vector<int32_t> bins(int64_t high) const {  // -1: by the high byte
    std::vector<int32_t> result(keys.size() * kScoreBins, 0);
    for (size_t cell = 0; cell < keys.size(); ++cell) {
      for (const int key : keys[cell]) {
        if (high >= 0 && key >> 8 != high) continue;
        ++result[cell * kScoreBins + static_cast<size_t>(high >= 0 ? key & 255 : key >> 8)];
      }
    }
    return result;
  }
  KeptRows keep(int64_t capacity, int64_t alignment) const {
    const int64_t boundary = score_boundary(matrix, 0, capacity, alignment, bins(-1));
    return keep_by_score(matrix, 0, capacity, alignment, bins(-1), boundary, bins(boundary));
  }
};

// Two sources, experts 0 and 1 on rank 0: nine rows.
Scores example() {
  return {{2, 4, {3, 2, 0, 7, 1, 3, 2, 0}},
          {{0x0102, 0x0105, 0x0300}, {0x0105, 0x0105}, {0x0105}, {0x0001, 0x0105, 0xffff}}};
}

struct KeepCase {
  const char* name;
  int64_t capacity, alignment;
  int64_t boundary;
  uint64_t cut;
  std::vector<int64_t> kept, at_cut;
};

class ScoreExample : public testing::TestWithParam<KeepCase> {};

// In order: 0001 (source 1, expert 1), 0102 (source 0, expert 0), then five of 0105 in tail order:
// expert 0 of sources 0 and 1, expert 1 of source 0 twice, expert 1 of source 1; then 0300 and
// ffff.
TEST_P(ScoreExample, KeepsThePrefix) {
  const KeepCase& c = GetParam();
  const Scores scores = example();
  EXPECT_EQ(score_boundary(scores.matrix, 0, c.capacity, c.alignment, scores.bins(-1)), c.boundary);
  const KeptRows rows = scores.keep(c.capacity, c.alignment);
  EXPECT_TRUE(rows.by_key);
  EXPECT_EQ(rows.cut, c.cut);
  EXPECT_EQ(rows.kept, c.kept);
  EXPECT_EQ(rows.at_cut, c.at_cut);
  const RankPlan plan = plan_rank(scores.matrix, 0, c.capacity, c.alignment, rows);
  EXPECT_EQ(plan.rows.cut, c.cut);
  EXPECT_TRUE(plan.overflow());
}

// Cells: (source 0, expert 0), (0, 1), (1, 0), (1, 1).
INSTANTIATE_TEST_SUITE_P(
    Capacities, ScoreExample,
    testing::Values(KeepCase{"nothing", 0, 1, 0, 0x0001, {0, 0, 0, 0}, {0, 0, 0, 0}},
                    KeepCase{"one", 1, 1, 1, 0x0102, {0, 0, 0, 1}, {0, 0, 0, 0}},
                    KeepCase{"before_the_ties", 2, 1, 1, 0x0105, {1, 0, 0, 1}, {0, 0, 0, 0}},
                    KeepCase{"a_part_of_the_ties", 4, 1, 1, 0x0105, {2, 0, 1, 1}, {1, 0, 1, 0}},
                    KeepCase{"a_part_of_a_cell", 5, 1, 1, 0x0105, {2, 1, 1, 1}, {1, 1, 1, 0}},
                    KeepCase{"all_ties", 7, 1, 3, 0x0300, {2, 2, 1, 2}, {0, 0, 0, 0}},
                    KeepCase{"all_but_the_last", 8, 1, 255, 0xffff, {3, 2, 1, 2}, {0, 0, 0, 0}},
                    // One block of 4, which the first row opens for expert 1.
                    KeepCase{"padded", 4, 4, 1, 0x0102, {0, 0, 0, 1}, {0, 0, 0, 0}},
                    // Two blocks: four rows each, and ffff would open a third.
                    KeepCase{"padded_twice", 8, 4, 255, 0xffff, {3, 2, 1, 2}, {0, 0, 0, 0}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ScoreOrder, EqualKeysAreTheTailOrder) {
  Scores scores{{3, 3, {4, 0, 0, 5, 0, 0, 6, 0, 0}}, {{}, {}, {}}};
  for (size_t source = 0; source < 3; ++source) scores.keys[source].assign(4 + source, 0x4242);
  for (int64_t capacity = 0; capacity < 15; ++capacity) {
    const RankPlan tail = plan_rank(scores.matrix, 0, capacity, 1, DropRule{});
    const KeptRows rows = scores.keep(capacity, 1);
    EXPECT_EQ(rows.kept, tail.rows.kept);
    EXPECT_EQ(rows.at_cut, tail.rows.kept);
    EXPECT_EQ(rows.cut, 0x4242u);
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

struct BadCall {
  const char* name;
  std::function<void()> call;
  const char* text;
};

class Refused : public testing::TestWithParam<BadCall> {};

TEST_P(Refused, NamesTheThingAndWhatIsAllowed) {
  const std::string text = error_of(GetParam().call);
  EXPECT_NE(text.find(GetParam().text), std::string::npos) << text;
}

std::vector<int32_t> changed(std::vector<int32_t> bins, size_t at, int32_t by) {
  bins[at] += by;
  return bins;
}

void by_score(int64_t boundary, const std::vector<int32_t>& fine) {
  const Scores scores = example();
  keep_by_score(scores.matrix, 0, 4, 1, scores.bins(-1), boundary, fine);
}

INSTANTIATE_TEST_SUITE_P(
    Score, Refused,
    testing::Values(
        BadCall{"coarse_size",
                [] { score_boundary(example().matrix, 0, 4, 1, std::vector<int32_t>(1000)); },
                "coarse has 1000 entries; allowed: ep * experts per rank * 256 = 1024"},
        BadCall{
            "coarse_sum",
            [] { score_boundary(example().matrix, 0, 4, 1, changed(example().bins(-1), 600, 2)); },
            "coarse of source 1, local expert 0 has 3 rows"},
        BadCall{"coarse_negative",
                [] {
                  score_boundary(example().matrix, 0, 4, 1,
                                 changed(changed(example().bins(-1), 5, 2), 6, -2));
                },
                "coarse of source 0, local expert 0 has 3 rows, or a negative bin"},
        BadCall{"no_overflow",
                [] { score_boundary(example().matrix, 0, 9, 1, example().bins(-1)); },
                "rank 0 has a demand of 9 slots; allowed: above the capacity 9"},
        BadCall{"boundary_range", [] { by_score(256, example().bins(1)); },
                "boundary is 256; allowed: 0 to 255"},
        BadCall{"boundary_too_low", [] { by_score(0, example().bins(0)); }, "boundary is 0;"},
        BadCall{"boundary_too_high", [] { by_score(3, example().bins(3)); }, "boundary is 3;"},
        BadCall{"fine_size", [] { by_score(1, std::vector<int32_t>(7)); }, "fine has 7 entries"},
        BadCall{"fine_of_another_bin", [] { by_score(1, example().bins(0)); },
                "fine of source 0, local expert 0 has 0 rows"},
        BadCall{"rank", [] { score_boundary(example().matrix, 2, 4, 1, example().bins(-1)); },
                "rank is 2"},
        BadCall{"rule_alone",
                [] { plan_rank(example().matrix, 0, 4, 1, DropRule{.order = DropOrder::kScore}); },
                "rank 0 overflows, demand 9 slots, capacity 4: under drop order 'score'"}),
    [](const auto& test) { return std::string(test.param.name); });

void plan_of(KeptRows rows) { plan_rank(example().matrix, 0, 4, 1, std::move(rows)); }

INSTANTIATE_TEST_SUITE_P(
    GivenRows, Refused,
    testing::Values(BadCall{"shape",
                            [] {
                              plan_of({.kept = {1, 1}});
                            },
                            "kept has 2 entries; allowed"},
                    BadCall{"more_than_routed",
                            [] {
                              plan_of({.kept = {0, 3, 0, 0}});
                            },
                            "kept of source 0, local expert 1 is 3; allowed: 0 to its count 2"},
                    BadCall{"negative",
                            [] {
                              plan_of({.kept = {0, 0, -1, 0}});
                            },
                            "kept of source 1, local expert 0 is -1"},
                    BadCall{"above_capacity",
                            [] {
                              plan_of({.kept = {3, 2, 0, 0}});
                            },
                            "the rows kept on rank 0 need 5 slots; allowed: the capacity 4"},
                    BadCall{"no_at_cut",
                            [] {
                              plan_of({.kept = {1, 0, 0, 0}, .by_key = true});
                            },
                            "at_cut has 0 entries; allowed: 4"},
                    BadCall{"at_cut_without_keys",
                            [] {
                              plan_of({.kept = {1, 0, 0, 0}, .at_cut = {0}});
                            },
                            "at_cut has 1 entries; allowed: 0"},
                    BadCall{
                        "more_at_cut_than_kept",
                        [] {
                          plan_of({.kept = {1, 0, 0, 0}, .by_key = true, .at_cut = {0, 0, 1, 0}});
                        },
                        "at_cut of source 1, local expert 0 is 1; allowed: 0 to what is kept, 0"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(GivenRows, AreLaidOutAsTheyAre) {
  const RankPlan plan = plan_rank(example().matrix, 0, 8, 4, KeptRows{.kept = {1, 1, 1, 2}});
  EXPECT_EQ(plan.token_counts, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(plan.zone_begin, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(plan.source_begin(1, 1), 5);
  EXPECT_EQ(plan.dropped_assignments, 4);
  EXPECT_EQ(plan.padding_slots, 3);
}

}  // namespace
}  // namespace spillway::plan
