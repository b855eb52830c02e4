#include "spillway/ops/grouped_linear.h"

#include <gtest/gtest.h>

#include "op_test.h"
#include "zones_case.h"

namespace spillway::ops {
namespace {

struct GroupedCase {
  const char* label;
  ZonesCase zones;
  int64_t in, out;
};
class GroupedLinearGradient : public ::testing::TestWithParam<GroupedCase> {};

TEST_P(GroupedLinearGradient, MatchesDifferences) {
  Context ctx;
  const auto& c = GetParam();
  const std::vector<bool> rows = c.zones.used_rows();
  const auto num_groups = static_cast<int64_t>(c.zones.rows.size());
  const bool empty = c.zones.used() == 0;
  EXPECT_TRUE(op_gradients_match(
      ctx,
      [zones = c.zones.zones()](Tape& tape, const Inputs& in) {
        return Inputs{grouped_linear(tape, in[0], in[1], zones)};
      },
      {{"x", c.zones.input(ctx, {c.zones.capacity, c.in}, 1), rows, empty},
       {.name = "w", .value = f64(ctx, {num_groups, c.out, c.in}, 2), .zero = empty}},
      {rows}));
}

INSTANTIATE_TEST_SUITE_P(
    , GroupedLinearGradient,
    ::testing::Values(GroupedCase{"one_group", {5, {0}, {5}}, 3, 4},
                      GroupedCase{"one_element", {1, {0}, {1}}, 1, 1},
                      GroupedCase{"odd", {8, {0, 3, 4}, {3, 1, 4}}, 5, 7},
                      GroupedCase{"gaps", {12, {0, 4, 8}, {3, 2, 1}}, 3, 2},
                      GroupedCase{"first_and_last_empty", {5, {0, 0, 5}, {0, 5, 0}}, 3, 3},
                      GroupedCase{"middle_empty", {6, {0, 4, 4}, {2, 0, 1}}, 2, 5},
                      GroupedCase{"all_empty", {4, {0, 0}, {0, 0}}, 3, 2},
                      GroupedCase{"no_rows", {0, {0, 0}, {0, 0}}, 3, 2}),
    kLabel);

}  // namespace
}  // namespace spillway::ops
