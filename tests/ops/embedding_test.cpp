#include "spillway/ops/embedding.h"

#include <gtest/gtest.h>

#include "op_test.h"

namespace spillway::ops {
namespace {

struct EmbeddingCase {
  const char* label;
  Shape tokens;
  std::vector<int32_t> ids;
  Shape table;
};
class EmbeddingGradient : public ::testing::TestWithParam<EmbeddingCase> {};

TEST_P(EmbeddingGradient, MatchesDifferences) {
  Context ctx;
  const auto& c = GetParam();
  const Tensor tokens = tensor_of<int32_t>(ctx, c.tokens, c.ids);
  EXPECT_TRUE(op_gradients_match(
      ctx, [&](Tape& tape, const Inputs& in) { return Inputs{embedding(tape, tokens, in[0])}; },
      {{.name = "w", .value = f64(ctx, c.table, 1), .zero = c.ids.empty()}}));
}

INSTANTIATE_TEST_SUITE_P(, EmbeddingGradient,
                         ::testing::Values(EmbeddingCase{"no_tokens", {0, 4}, {}, {3, 2}},
                                           EmbeddingCase{"one", {1, 1}, {0}, {1, 1}},
                                           EmbeddingCase{
                                               "repeated", {2, 3}, {4, 0, 4, 4, 2, 0}, {5, 3}},
                                           EmbeddingCase{"wide", {1, 2}, {1, 1}, {2, 37}}),
                         kLabel);

}  // namespace
}  // namespace spillway::ops
