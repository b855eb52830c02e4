#include "spillway/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include "op_test.h"
#include "spillway/ops/basic.h"

namespace spillway::ops {
namespace {

struct EntropyCase {
  const char* label;
  int64_t vocab;
  std::vector<int32_t> targets;
  double scale;
  bool zero = false;
};
class CrossEntropyGradient : public ::testing::TestWithParam<EntropyCase> {
 protected:
  int64_t rows() const { return static_cast<int64_t>(GetParam().targets.size()); }
  Context ctx_;
  Tensor logits_ = f64(ctx_, {rows(), GetParam().vocab}, 1, 2.0);
  Tensor targets_ = tensor_of<int32_t>(ctx_, {rows()}, GetParam().targets);
};

TEST_P(CrossEntropyGradient, MatchesDifferences) {
  EXPECT_TRUE(op_gradients_match(ctx_,
                                 [&](Tape& tape, const Inputs& in) {
                                   return Inputs{
                                       cross_entropy(tape, in[0], targets_, GetParam().scale).loss};
                                 },
                                 {{.name = "logits", .value = logits_, .zero = GetParam().zero}}));
}

TEST_P(CrossEntropyGradient, TheLossIsTheScaledSumOfItsRows) {
  Tape tape(ctx_, false);
  const CrossEntropyResult result =
      cross_entropy(tape, Variable(logits_), targets_, GetParam().scale);
  double sum = 0.0;
  for (int64_t r = 0; r < rows(); ++r) {
    const int32_t target = GetParam().targets[static_cast<size_t>(r)];
    if (target < 0) continue;
    const double* const row = logits_.data<double>() + r * GetParam().vocab;
    double total = 0.0;
    for (int64_t v = 0; v < GetParam().vocab; ++v) total += std::exp(row[v]);
    sum += std::log(total) - row[target];
  }
  constexpr double kRounding = 1e-13;  // of some ten sums in double
  EXPECT_NEAR(result.loss_sum, sum, kRounding * (1.0 + sum));
  EXPECT_NEAR(scalar_value(result.loss.value()), GetParam().scale * sum, kRounding * (1.0 + sum));
}

INSTANTIATE_TEST_SUITE_P(, CrossEntropyGradient,
                         ::testing::Values(EntropyCase{"no_rows", 5, {}, 1.0, true},
                                           EntropyCase{"one", 3, {2}, 1.0},
                                           // A vocabulary of one leaves nothing to learn.
                                           EntropyCase{"one_class", 1, {0, 0}, 1.0, true},
                                           EntropyCase{"scaled", 7, {0, 6, 3, 3, 1}, 0.125},
                                           EntropyCase{"some_ignored", 4, {-1, 2, -1, 0}, 0.5},
                                           EntropyCase{"all_ignored", 4, {-1, -1}, 0.5, true}),
                         kLabel);

TEST(CrossEntropyChain, TheGradientFollowsWhatTheLossIsUsedFor) {
  Context ctx;
  const Tensor targets = tensor_of<int32_t>(ctx, {2}, {1, 0});
  EXPECT_TRUE(
      op_gradients_match(ctx,
                         [&](Tape& tape, const Inputs& in) {
                           const Variable loss = cross_entropy(tape, in[0], targets, 0.5).loss;
                           return Inputs{weighted_sum(tape, std::vector{loss}, std::vector{3.0})};
                         },
                         {{"logits", f64(ctx, {2, 3}, 1)}}));
}

}  // namespace
}  // namespace spillway::ops
