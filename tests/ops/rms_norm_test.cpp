#include "spillway/ops/rms_norm.h"

#include <gtest/gtest.h>

#include "op_test.h"

namespace spillway::ops {
namespace {

struct NormCase {
  const char* label;
  Shape x;
  double eps;
};
class RmsNormGradient : public ::testing::TestWithParam<NormCase> {};

TEST_P(RmsNormGradient, MatchesDifferences) {
  Context ctx;
  const Shape& shape = GetParam().x;
  EXPECT_TRUE(op_gradients_match(
      ctx,
      [](Tape& tape, const Inputs& in) {
        return Inputs{rms_norm(tape, in[0], in[1], GetParam().eps)};
      },
      {{"x", f64(ctx, shape, 1)},
       {.name = "w", .value = f64(ctx, {shape[-1]}, 2), .zero = shape.rows() == 0}}));
}

INSTANTIATE_TEST_SUITE_P(, RmsNormGradient,
                         ::testing::Values(NormCase{"no_rows", {0, 4}, 1e-6},
                                           NormCase{"one_column", {3, 1}, 0.5},
                                           NormCase{"odd", {5, 7}, 1e-6},
                                           NormCase{"large_eps", {5, 7}, 2.0},
                                           NormCase{"heads", {2, 3, 2, 4}, 1e-6}),
                         kLabel);

}  // namespace
}  // namespace spillway::ops
