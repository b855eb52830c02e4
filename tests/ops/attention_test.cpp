#include "spillway/ops/attention.h"

#include <gtest/gtest.h>

#include "op_test.h"
#include "spillway/ops/basic.h"

namespace spillway::ops {
namespace {

struct AttentionCase {
  const char* label;
  int64_t batch, seq, heads, kv_heads, head_dim;
};
class AttentionGradient : public ::testing::TestWithParam<AttentionCase> {
 protected:
  Tensor input(int64_t heads, uint64_t seed) {
    const auto& c = GetParam();
    return random_tensor(ctx_, {c.batch, c.seq, heads, c.head_dim}, DType::kF64, seed);
  }
  Context ctx_;
};

TEST_P(AttentionGradient, MatchesDifferences) {
  const auto& c = GetParam();
  // A query that sees one key only weighs it with 1 whatever the scores are.
  const bool no_choice = c.seq == 1;
  EXPECT_TRUE(op_gradients_match(
      ctx_,
      [](Tape& tape, const Inputs& in) { return Inputs{attention(tape, in[0], in[1], in[2])}; },
      {{.name = "q", .value = input(c.heads, 1), .zero = no_choice},
       {.name = "k", .value = input(c.kv_heads, 2), .zero = no_choice},
       {.name = "v", .value = input(c.kv_heads, 3)}}));
}

INSTANTIATE_TEST_SUITE_P(, AttentionGradient,
                         ::testing::Values(AttentionCase{"no_sequences", 0, 3, 2, 1, 4},
                                           AttentionCase{"one_token", 2, 1, 2, 2, 3},
                                           AttentionCase{"two_tokens", 1, 2, 1, 1, 2},
                                           AttentionCase{"multi_head", 2, 5, 3, 3, 4},
                                           AttentionCase{"grouped_by_2", 1, 7, 4, 2, 3},
                                           AttentionCase{"grouped_by_3", 1, 6, 6, 2, 2},
                                           AttentionCase{"one_kv_head", 2, 4, 4, 1, 5},
                                           AttentionCase{"past_a_block", 1, 70, 2, 1, 2}),
                         kLabel);

/// A region around attention, with and without its result among the saves.
class AttentionRegion : public ::testing::TestWithParam<bool> {};

TEST_P(AttentionRegion, GivesTheBitsOfAPlainRun) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {1, 6, 2, 4}, DType::kF64, 1);
  std::vector<Tensor> gradients;
  for (const bool with_region : {false, true}) {
    Tape tape(ctx);
    const Variable x_leaf = leaf(ctx, "x", x);
    const auto body = [&](const Variable& in) { return Inputs{attention(tape, in, in, in)}; };
    std::vector<std::string> save;
    if (GetParam()) save.emplace_back("attention");
    const Variable y =
        with_region ? tape.region({.save = save}, x_leaf, body).front() : body(x_leaf).front();
    tape.backward(y, random_tensor(ctx, y.shape(), DType::kF64, 2));
    gradients.push_back(x_leaf.grad());
  }
  EXPECT_TRUE(same_bytes(gradients[0], gradients[1]));
}

INSTANTIATE_TEST_SUITE_P(, AttentionRegion, ::testing::Bool(), [](const auto& param) {
  return param.param ? "saved" : "computed_again";
});

TEST(AttentionSave, KeepsTheResultInMemory) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {1, 16, 2, 8}, DType::kF64, 1);
  const auto held = [&](std::vector<std::string> save) {
    Tape tape(ctx);
    const Variable x_leaf = leaf(ctx, "x", x);
    const int64_t before = ctx.allocator()->total().current_bytes;
    tape.region({.save = std::move(save)}, x_leaf, [&](const Variable& in) {
      // What follows attention is the output, so that its result is not held anyway.
      return Inputs{add(tape, attention(tape, in, in, in), in)};
    });
    return ctx.allocator()->total().current_bytes - before;
  };
  const int64_t log_sums = 1 * 2 * 16 * 8;
  EXPECT_EQ(held({"attention"}) - held({}), x.bytes() + log_sums);
}

}  // namespace
}  // namespace spillway::ops
