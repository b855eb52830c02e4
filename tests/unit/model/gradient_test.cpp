// The gradient of the whole model in double, against central differences.
#include <cmath>

#include <gtest/gtest.h>

#include "model_fixture.h"

namespace spillway::model {
namespace {

struct GradientCase {
  const char* label;
  ModelOptions options;
};

ModelOptions with(void (*change)(DecoderConfig&)) {
  ModelOptions options;
  change(options.config);
  return options;
}

class ModelGradient : public ::testing::TestWithParam<GradientCase> {};

TEST_P(ModelGradient, OfEveryParameterMatchesDifferences) {
  TestModel test(GetParam().options);
  // Larger weights than at the start of training: scores differ, so no choice flips within a
  // difference step, and no gradient is tiny.
  spillway::testing::randomise(test.store, 0.4);
  constexpr int64_t kSampled = 8;  // elements of each parameter
  EXPECT_TRUE(spillway::testing::parameter_gradients_match(
      test.ctx, test.store, [&](Tape& tape) { return test.forward(tape).objective; }, kSampled));
}

INSTANTIATE_TEST_SUITE_P(
    , ModelGradient,
    ::testing::Values(
        GradientCase{"head_norm", {}},
        GradientCase{"full_norm", with([](DecoderConfig& c) { c.model.qk_norm = QkNorm::kFull; })},
        GradientCase{"no_norm", with([](DecoderConfig& c) { c.model.qk_norm = QkNorm::kNone; })},
        GradientCase{"tied", with([](DecoderConfig& c) { c.model.tie_embeddings = true; })},
        GradientCase{"one_kv_head", with([](DecoderConfig& c) { c.model.kv_heads = 1; })},
        GradientCase{"all_layers_moe",
                     with([](DecoderConfig& c) { c.model.first_dense_layers = 0; })},
        GradientCase{"dense", with([](DecoderConfig& c) { c.moe.experts = 0; })},
        GradientCase{"large_balance_terms", with([](DecoderConfig& c) {
                       c.moe.router.aux_coef = 1.0;
                       c.moe.router.z_coef = 0.5;
                     })},
        GradientCase{"no_balance_terms", with([](DecoderConfig& c) {
                       c.moe.router.aux_loss = moe::AuxLoss::kNone;
                       c.moe.router.z_coef = 0.0;
                     })},
        GradientCase{"recomputed",
                     with([](DecoderConfig& c) { c.recompute.region = RecomputeRegion::kLayer; })}),
    [](const auto& param) { return param.param.label; });

TEST(TiedEmbedding, GetsTheGradientsOfBothItsUses) {
  ModelOptions untied;
  ModelOptions tied = with([](DecoderConfig& c) { c.model.tie_embeddings = true; });
  TestModel two(untied), one(tied);
  // Both uses have the same weight in both models.
  copy(two.store.at("model.embed_tokens.weight").value, two.store.at("lm_head.weight").value);
  EXPECT_EQ(two.step(), one.step());
  const Tensor& as_embedding = two.store.at("model.embed_tokens.weight").gradient;
  const Tensor& as_output = two.store.at("lm_head.weight").gradient;
  std::vector<double> sum = spillway::testing::to_doubles(as_embedding);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += as_output.data<double>()[i];
  // The order of additions differs: rounding of the whole, as single elements may cancel.
  constexpr double kRounding = 1e-14;
  const std::vector<double> got =
      spillway::testing::to_doubles(one.store.at("model.embed_tokens.weight").gradient);
  double error = 0.0, size = 0.0;
  for (size_t i = 0; i < sum.size(); ++i) {
    error += (got[i] - sum[i]) * (got[i] - sum[i]);
    size += sum[i] * sum[i];
  }
  EXPECT_GT(size, 0.0);
  EXPECT_LE(std::sqrt(error / size), kRounding);
}

TEST(MicroBatches, GradientsAddUp) {
  TestModel test({});
  test.step();
  std::vector<Tensor> once;
  for (const nn::Parameter& p : test.store.all()) once.push_back(p.gradient.clone(test.ctx));
  Tape tape(test.ctx);
  tape.backward(test.forward(tape).objective);
  for (size_t i = 0; i < once.size(); ++i) {
    std::vector<double> twice = spillway::testing::to_doubles(once[i]);
    for (double& g : twice) g *= 2.0;
    constexpr double kRounding = 1e-13;  // a second sum into a buffer that is not zero
    EXPECT_TRUE(spillway::testing::all_near(test.store.all()[i].gradient, twice, kRounding))
        << test.store.all()[i].spec.name;
  }
}

}  // namespace
}  // namespace spillway::model
