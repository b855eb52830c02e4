// The decoder's list of selection biases: names, order, and that it is the routers' own memory.
#include "model_fixture.h"

namespace spillway::model {
namespace {

ModelOptions biased(int64_t first_dense_layers, double rate) {
  ModelOptions options;
  options.config.model.layers = 3;
  options.config.model.first_dense_layers = first_dense_layers;
  options.config.moe.router.score = moe::ScoreFunction::kSigmoid;
  options.config.moe.router.bias_update_rate = rate;
  return options;
}

TEST(SelectionBiases, OneAMoeLayerUnderTransformersName) {
  const TestModel test(biased(1, 0.001));
  const std::vector<moe::SelectionBias> biases = test.decoder.selection_biases();
  ASSERT_EQ(biases.size(), 2U);
  EXPECT_EQ(biases[0].name, "model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(biases[1].name, "model.layers.2.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(biases[0].moe_layer, 0);
  EXPECT_EQ(biases[1].moe_layer, 1);
  EXPECT_FALSE(biases[0].values.shares_storage(biases[1].values));
  for (const moe::SelectionBias& bias : biases) {
    EXPECT_EQ(bias.values.dtype(), DType::kF32);
    EXPECT_EQ(bias.values.shape(), (Shape{test.options.config.moe.experts}));
  }
}

TEST(SelectionBiases, NoneWithoutARateAndNoneInADenseModel) {
  EXPECT_TRUE(TestModel(biased(1, 0.0)).decoder.selection_biases().empty());
  EXPECT_TRUE(TestModel(biased(3, 0.001)).decoder.selection_biases().empty());
}

TEST(SelectionBiases, WritingToOneMovesThatLayersChoice) {
  TestModel test(biased(0, 0.001));
  test.step();
  const std::vector<moe::LayerRecord> before = test.records;
  test.records.clear();
  Tensor values = test.decoder.selection_biases()[1].values;
  for (int64_t e = 2; e < values.numel(); ++e) values.data<float>()[e] = -100.0F;
  test.step();
  ASSERT_EQ(test.records.size(), 3U);
  EXPECT_EQ(test.records[0].ledger.expert_tokens, before[0].ledger.expert_tokens);
  EXPECT_NE(test.records[1].ledger.expert_tokens, before[1].ledger.expert_tokens);
  for (size_t e = 2; e < test.records[1].ledger.expert_tokens.size(); ++e) {
    EXPECT_EQ(test.records[1].ledger.expert_tokens[e], 0);
  }
}

TEST(SelectionBiases, AreNoParameters) {
  TestModel with(biased(0, 0.001)), without(biased(0, 0.0));
  EXPECT_EQ(with.store.all().size(), without.store.all().size());
  EXPECT_EQ(count_parameters(with.options.config).total,
            count_parameters(without.options.config).total);
}

}  // namespace
}  // namespace spillway::model
