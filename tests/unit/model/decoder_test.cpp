#include "spillway/model/decoder.h"

#include <gtest/gtest.h>

#include "model_fixture.h"

namespace spillway::model {
namespace {

using spillway::testing::same_bytes;

class DecoderDtype : public ::testing::TestWithParam<DType> {};

TEST_P(DecoderDtype, AnUntrainedModelGuesses) {
  ModelOptions options{.dtype = GetParam(), .batch = 4, .seq = 8};
  options.config.model.vocab_size = 100;
  TestModel test(options);
  Tape tape(test.ctx, false);
  const ForwardResult result = test.forward(tape);
  // Logits at the start are of size 0.02 * sqrt(hidden): the loss is off by about their variance.
  constexpr double kSpread = 0.01;
  EXPECT_NEAR(result.loss_sum / 32.0, std::log(100.0), kSpread);
  EXPECT_EQ(result.objective.dtype(), accumulator_dtype(GetParam()));
}

TEST_P(DecoderDtype, TheObjectiveIsTheLossAndTheWeightedTerms) {
  ModelOptions options{.dtype = GetParam()};
  options.config.moe.router.aux_coef = 0.5;
  options.config.moe.router.z_coef = 0.25;
  options.config.model.layers = 3;  // two of them MoE
  TestModel test(options);
  Tape tape(test.ctx, false);
  const ForwardResult result = test.forward(tape);
  const double wanted =
      result.loss_sum / 10.0 + 2.0 * (0.5 * result.aux_loss + 0.25 * result.z_loss);
  constexpr double kRounding = 1e-5;  // of an f32 objective
  EXPECT_NEAR(ops::scalar_value(result.objective.value()), wanted, kRounding * wanted);
  // The means over layers of what the records hold.
  ASSERT_EQ(test.records.size(), 2U);
  EXPECT_NEAR(result.aux_loss, (test.records[0].aux_loss + test.records[1].aux_loss) / 2.0, 1e-12);
  EXPECT_NEAR(result.z_loss, (test.records[0].z_loss + test.records[1].z_loss) / 2.0, 1e-12);
  EXPECT_EQ(test.records[1].moe_layer, 1);
}

INSTANTIATE_TEST_SUITE_P(, DecoderDtype, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

/// bf16 against f32 with the same weights. Weights, inputs of products and results are each rounded
/// to 2^-9; over two layers, forward and back, errors of either sign grow to some ten times that in
/// gradients (measured 0.033). The loss is a mean over tokens.
constexpr double kBf16Loss = 0.005;
constexpr double kBf16Gradient = 0.06;

struct CloseCase {
  const char* label;
  bool moe;
  RecomputeRegion region;
};
class BF16Model : public ::testing::TestWithParam<CloseCase> {};

TEST_P(BF16Model, IsCloseToF32) {
  ModelOptions options{.dtype = DType::kF32, .batch = 4, .seq = 8};
  options.config.model.hidden = 32;
  options.config.model.head_dim = 8;
  options.config.recompute.region = GetParam().region;
  if (!GetParam().moe) options.config.moe.experts = 0;
  // Near ties would be chosen differently in bf16: that is not what is tested here.
  options.config.moe.router.force = moe::ForceRouting::kBalanced;
  TestModel f32(options);
  options.dtype = DType::kBF16;
  TestModel bf(options);
  spillway::testing::randomise(f32.store, 0.15);
  spillway::testing::randomise(bf.store, 0.15);
  EXPECT_NEAR(bf.step(), f32.step(), kBf16Loss * f32.step());
  for (const nn::Parameter& p : f32.store.all()) {
    const Tensor& other = bf.store.at(p.spec.name).gradient;
    double error = 0.0;
    for (int64_t i = 0; i < other.numel(); ++i) {
      const double d =
          spillway::testing::element(other, i) - spillway::testing::element(p.gradient, i);
      error += d * d;
    }
    const double size = spillway::testing::dot(p.gradient, p.gradient);
    EXPECT_GT(size, 0.0) << p.spec.name;
    EXPECT_LE(std::sqrt(error / size), kBf16Gradient) << p.spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(, BF16Model,
                         ::testing::Values(CloseCase{"dense", false, RecomputeRegion::kNone},
                                           CloseCase{"moe", true, RecomputeRegion::kNone},
                                           CloseCase{"moe_recomputed", true,
                                                     RecomputeRegion::kLayer}),
                         [](const auto& param) { return param.param.label; });

class DecoderTest : public ::testing::Test {
 protected:
  static Tensor logits(TestModel& test) {
    Tape tape(test.ctx, false);
    return test.decoder.logits(tape, test.tokens, test.call(), nullptr).value();
  }
};

TEST_F(DecoderTest, LogitsFollowTheTokensSeenSoFar) {
  TestModel test({});
  spillway::testing::randomise(test.store, 0.4);
  const Tensor before = logits(test);
  EXPECT_EQ(before.shape(), (Shape{10, 11}));
  int32_t& changed = test.tokens.data<int32_t>()[3];  // of the first sequence
  changed = (changed + 1) % 11;
  const Tensor after = logits(test);
  for (int64_t row = 0; row < 10; ++row) {
    const bool sees = row == 3 || row == 4;
    EXPECT_EQ(same_bytes(before.rows(row, row + 1), after.rows(row, row + 1)), !sees)
        << "row " << row;
  }
}

TEST_F(DecoderTest, SequencesDoNotDependOnEachOther) {
  TestModel test({});
  spillway::testing::randomise(test.store, 0.4);
  const Tensor both = logits(test);
  const Tensor second = test.tokens.rows(1, 2).clone(test.ctx);
  test.tokens = second;
  // Without the first sequence zones hold fewer rows, but no sum crosses tokens.
  EXPECT_TRUE(same_bytes(logits(test), both.rows(5, 10)));
}

TEST_F(DecoderTest, AnEmptyMicroBatchPassesForwardAndBackward) {
  TestModel test({.batch = 0});
  Tape tape(test.ctx);
  const ForwardResult result = test.forward(tape);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(ops::scalar_value(result.objective.value()), 0.0);
  tape.backward(result.objective);
  EXPECT_EQ(test.ctx.counters().total().backward_transports, 2);
  for (const nn::Parameter& p : test.store.all()) {
    EXPECT_EQ(spillway::testing::dot(p.gradient, p.gradient), 0.0) << p.spec.name;
  }
}

TEST_F(DecoderTest, EveryLeafIsReadyOnceInBackward) {
  for (const RecomputeRegion region : {RecomputeRegion::kNone, RecomputeRegion::kLayer}) {
    ModelOptions options;
    options.config.recompute.region = region;
    options.config.model.tie_embeddings = true;
    TestModel test(options);
    Tape tape(test.ctx);
    std::vector<std::string> ready;
    tape.on_leaf_ready([&](const std::string& name) { ready.push_back(name); });
    tape.backward(test.forward(tape).objective);
    EXPECT_EQ(ready.size(), test.store.all().size());
    EXPECT_EQ(ready.front(), "model.norm.weight");
    EXPECT_EQ(ready.back(), "model.embed_tokens.weight") << "also the output layer's: last";
    std::sort(ready.begin(), ready.end());
    EXPECT_EQ(std::adjacent_find(ready.begin(), ready.end()), ready.end()) << "ready twice";
  }
}

TEST_F(DecoderTest, ForcedRoutingIsExactlyBalanced) {
  ModelOptions options;
  options.config.moe.router.force = moe::ForceRouting::kBalanced;
  TestModel test(options);  // 10 tokens, 2 of 4 experts
  Tape tape(test.ctx, false);
  const ForwardResult result = test.forward(tape);
  EXPECT_EQ(test.records.front().ledger.expert_tokens, (std::vector<int64_t>{5, 5, 5, 5}));
  EXPECT_NEAR(result.aux_loss, 1.0, 1e-12);
}

TEST_F(DecoderTest, TheSeedDecidesTheModel) {
  TestModel a({.seed = 1}), b({.seed = 1}), c({.seed = 2});
  const double objective = a.step();
  EXPECT_EQ(objective, b.step());
  EXPECT_NE(objective, c.step());
}

TEST_F(DecoderTest, ASequenceBeyondMaxSeqIsAnError) {
  TestModel test({.seq = 9});
  Tape tape(test.ctx, false);
  EXPECT_TRUE(spillway::testing::throws_with<Error>([&] { test.forward(tape); },
                                                    {"9 tokens", "max_seq is 8"}));
}

TEST_F(DecoderTest, MemoryIsGivenBackWhenForwardFails) {
  TestModel test({});
  ep::EpConfig config = TestModel::ep_config(test.options);
  config.recv_capacity_per_rank = {2};
  test.self.session.finalize();
  test.self.session.bootstrap(config);
  const int64_t before = test.ctx.allocator()->total().current_bytes;
  {
    Tape tape(test.ctx);
    EXPECT_THROW(test.forward(tape), ep::OverflowError);
  }
  EXPECT_EQ(test.ctx.allocator()->total().current_bytes, before);
}

}  // namespace
}  // namespace spillway::model
