#include "spillway/ops/swiglu.h"

#include <gtest/gtest.h>

#include "op_test.h"
#include "zones_case.h"

namespace spillway::ops {
namespace {

struct SwigluCase {
  const char* label;
  ZonesCase zones;
  int64_t width;
  bool scaled;
};
class SwigluGradient : public ::testing::TestWithParam<SwigluCase> {};

TEST_P(SwigluGradient, MatchesDifferences) {
  Context ctx;
  const auto& c = GetParam();
  const ZonesPtr zones = c.zones.zones();
  const std::vector<bool> rows = c.zones.used_rows();
  const bool empty = c.zones.used() == 0;
  const Tensor x = c.zones.input(ctx, {c.zones.capacity, 2 * c.width}, 1);
  std::vector<OpInput> inputs(c.scaled ? 2 : 1, OpInput{"x", x, rows, empty});
  if (c.scaled) {
    inputs[1].name = "row_scale";
    inputs[1].value = c.zones.input(ctx, {c.zones.capacity}, 2);
  }
  EXPECT_TRUE(op_gradients_match(ctx,
                                 [&](Tape& tape, const Inputs& in) {
                                   return Inputs{
                                       swiglu(tape, in[0], c.scaled ? in[1] : Variable(), zones)};
                                 },
                                 inputs, {rows}));
}

INSTANTIATE_TEST_SUITE_P(
    , SwigluGradient,
    ::testing::Values(SwigluCase{"dense", {3, {0}, {3}}, 5, false},
                      SwigluCase{"dense_scaled", {3, {0}, {3}}, 5, true},
                      SwigluCase{"no_rows", {0, {0}, {0}}, 4, false},
                      SwigluCase{"one", {1, {0}, {1}}, 1, true},
                      SwigluCase{"one_column", {7, {0}, {7}}, 1, false},
                      SwigluCase{"gaps", {9, {0, 4, 6}, {2, 1, 2}}, 3, false},
                      SwigluCase{"gaps_scaled", {9, {0, 4, 6}, {2, 1, 2}}, 3, true},
                      SwigluCase{"empty_zones", {6, {0, 2, 2, 5}, {2, 0, 1, 0}}, 3, true},
                      SwigluCase{"all_zones_empty", {4, {0, 0}, {0, 0}}, 3, true}),
    kLabel);

TEST(SwigluSave, IsKeptUnderTheNameExpertAct) {
  Context ctx;
  const Variable x = leaf(ctx, "x", f64(ctx, {4, 6}, 1));
  const auto held = [&](std::vector<std::string> save) {
    Tape tape(ctx);
    const int64_t before = ctx.allocator()->total().current_bytes;
    tape.region({.save = std::move(save)}, x, [&](const Variable& in) {
      swiglu(tape, in, {}, all_rows(4));
      return Inputs{in};
    });
    return ctx.allocator()->total().current_bytes - before;
  };
  EXPECT_EQ(held({"expert_act"}), 4 * 3 * 8);
  EXPECT_EQ(held({}), 0);
}

}  // namespace
}  // namespace spillway::ops
