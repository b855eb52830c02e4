#include "spillway/nn/self_attention.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"
#include "support/parameter_gradient_check.h"

namespace spillway::nn {
namespace {

using spillway::testing::random_tensor;

struct AttentionCase {
  const char* label;
  int64_t heads, kv_heads, head_dim;
  QkNorm qk_norm;
};

class SelfAttentionTest : public ::testing::TestWithParam<AttentionCase> {
 protected:
  static constexpr int64_t kHidden = 6, kBatch = 2, kSeq = 5;

  static SelfAttentionConfig config() {
    const auto& c = GetParam();
    return {.hidden = kHidden,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .qk_norm = c.qk_norm};
  }
  static std::vector<ParameterSpec> specs() {
    std::vector<ParameterSpec> all;
    SelfAttention::append_specs(config(), "attn.", DType::kF64, all);
    // The input takes the place of a parameter: it is differentiated like one.
    all.push_back({.name = "x", .shape = {kBatch * kSeq, kHidden}, .dtype = DType::kF64});
    return all;
  }
  Variable run(Tape& tape) { return attention_(tape, store_.at("x").variable, kBatch, rotary_); }
  Tensor output() {
    Tape tape(ctx_, false);
    return run(tape).value();
  }

  Context ctx_;
  ParameterStore store_{ctx_, specs(), 1, 1, 0};
  SelfAttention attention_{config(), "attn.", store_};
  RotaryTable rotary_{ctx_, kSeq + 2, GetParam().head_dim, 100.0, DType::kF64};
};

TEST_P(SelfAttentionTest, GradientsOfParametersAndInputMatchDifferences) {
  spillway::testing::randomise(store_, 0.5);
  EXPECT_TRUE(spillway::testing::parameter_gradients_match(ctx_, store_, [this](Tape& tape) {
    return spillway::testing::random_projection(tape, run(tape));
  }));
}

TEST_P(SelfAttentionTest, ATokenSeesItselfAndThoseBeforeIt) {
  spillway::testing::randomise(store_, 0.5);
  const Tensor before = output();
  constexpr int64_t kChanged = 2;  // of the first sequence
  store_.at("x").value.data<double>()[kChanged * kHidden] += 1.0;
  const Tensor after = output();
  for (int64_t row = 0; row < kBatch * kSeq; ++row) {
    const bool sees = row >= kChanged && row < kSeq;
    EXPECT_EQ(spillway::testing::same_bytes(before.rows(row, row + 1), after.rows(row, row + 1)),
              !sees)
        << "row " << row;
  }
}

TEST_P(SelfAttentionTest, TheOrderOfTokensMatters) {
  spillway::testing::randomise(store_, 0.5);
  // The last token sees all of its sequence; without positions a swap before it would not show.
  const Tensor before = output();
  double* const x = store_.at("x").value.data<double>();
  std::swap_ranges(x, x + kHidden, x + kHidden);
  const Tensor after = output();
  const double first = before.data<double>()[(kSeq - 1) * kHidden];
  EXPECT_GT(std::abs(first - after.data<double>()[(kSeq - 1) * kHidden]), 1e-6);
}

TEST_P(SelfAttentionTest, AnEmptyBatchGivesNoRows) {
  Tape tape(ctx_);
  const Variable y =
      attention_(tape, Variable(Tensor::zeros(ctx_, {0, kHidden}, DType::kF64)), 0, rotary_);
  EXPECT_EQ(y.shape(), (Shape{0, kHidden}));
  tape.backward(y, Tensor::zeros(ctx_, {0, kHidden}, DType::kF64));
  EXPECT_EQ(spillway::testing::dot(store_.at("attn.q_proj.weight").gradient,
                                   store_.at("attn.q_proj.weight").gradient),
            0.0);
}

INSTANTIATE_TEST_SUITE_P(, SelfAttentionTest,
                         ::testing::Values(AttentionCase{"plain", 2, 2, 4, QkNorm::kNone},
                                           AttentionCase{"grouped", 4, 2, 2, QkNorm::kNone},
                                           AttentionCase{"head_norm", 4, 1, 4, QkNorm::kHead},
                                           AttentionCase{"full_norm", 2, 1, 6, QkNorm::kFull}),
                         [](const auto& param) { return param.param.label; });

TEST(SelfAttentionSpecs, HaveTheNamesAndShapesOfTransformers) {
  const auto described = [](QkNorm norm) {
    std::vector<ParameterSpec> specs;
    SelfAttention::append_specs(
        {.hidden = 8, .heads = 4, .kv_heads = 2, .head_dim = 6, .qk_norm = norm}, "a.", DType::kF32,
        specs);
    std::vector<std::string> lines;
    for (const ParameterSpec& s : specs) {
      lines.push_back(str(s.name, " ", s.shape, s.decay ? "" : " no decay"));
    }
    return lines;
  };
  std::vector<std::string> wanted = {"a.q_proj.weight [24, 8]", "a.k_proj.weight [12, 8]",
                                     "a.v_proj.weight [12, 8]", "a.o_proj.weight [8, 24]"};
  EXPECT_EQ(described(QkNorm::kNone), wanted);
  wanted.insert(wanted.end(), {"a.q_norm.weight [6] no decay", "a.k_norm.weight [6] no decay"});
  EXPECT_EQ(described(QkNorm::kHead), wanted);
  wanted[4] = "a.q_norm.weight [24] no decay";
  wanted[5] = "a.k_norm.weight [12] no decay";
  EXPECT_EQ(described(QkNorm::kFull), wanted);
}

TEST(RotaryTableTest, HoldsCosinesOfPositionsTimesFrequencies) {
  Context ctx;
  const RotaryTable table(ctx, 3, 4, 100.0, DType::kF64);
  EXPECT_EQ(table.cos.shape(), (Shape{3, 2}));
  constexpr double kRounding = 1e-15;
  EXPECT_NEAR(table.cos.data<double>()[0], 1.0, kRounding);
  EXPECT_NEAR(table.sin.data<double>()[4], std::sin(2.0), kRounding);        // position 2, j 0
  EXPECT_NEAR(table.cos.data<double>()[5], std::cos(2.0 * 0.1), kRounding);  // 100^(-2/4) = 0.1
}

}  // namespace
}  // namespace spillway::nn
