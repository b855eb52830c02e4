// config.json beside the weights: what transformers would take the model for.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/checkpoint_fixture.h"
#include "support/temp_files.h"

namespace spillway::checkpoint {
namespace {

using Json = nlohmann::json;

Json config_of(const ModelCase& model, DType dtype = DType::kF32) {
  const testing::TempFiles files;
  Single single(model, dtype);
  const SaveResult saved =
      save(single.replica.ctx, files.folder().string(), single.replica.parts(), state_at(1), 1);
  return Json::parse(read_bytes(saved.path + "/config.json"));
}

TEST(TransformersConfig, CommonKeys) {
  ModelCase model = qwen_case();
  model.config.model.rope_theta = 12345.0;
  model.config.model.norm_eps = 3e-5;
  const Json json = config_of(model, DType::kBF16);
  const Json wanted = {{"vocab_size", 11},
                       {"hidden_size", 8},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 2},
                       {"num_key_value_heads", 1},
                       {"head_dim", 4},
                       {"hidden_act", "silu"},
                       {"max_position_embeddings", 16},
                       {"rms_norm_eps", 3e-5},
                       {"rope_theta", 12345.0},
                       {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 12345.0}}},
                       {"tie_word_embeddings", false},
                       {"bos_token_id", nullptr},
                       {"eos_token_id", nullptr},
                       {"pad_token_id", nullptr},
                       {"torch_dtype", "bfloat16"},
                       {"dtype", "bfloat16"}};
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(json.at(key), value) << key;
}

TEST(TransformersConfig, Qwen3Moe) {
  ModelCase model = qwen_case();
  model.config.model.first_dense_layers = 1;
  const Json json = config_of(model);
  EXPECT_EQ(json.at("model_type"), "qwen3_moe");
  EXPECT_EQ(json.at("architectures"), Json::array({"Qwen3MoeForCausalLM"}));
  EXPECT_EQ(json.at("num_experts"), 4);
  EXPECT_EQ(json.at("num_experts_per_tok"), 2);
  EXPECT_EQ(json.at("moe_intermediate_size"), 6);
  EXPECT_EQ(json.at("intermediate_size"), 10);
  EXPECT_EQ(json.at("mlp_only_layers"), Json::array({0}));
  EXPECT_EQ(json.at("norm_topk_prob"), true);
}

TEST(TransformersConfig, Olmoe) {
  ModelCase model = olmoe_case();
  model.config.moe.router.normalize_topk = false;
  const Json json = config_of(model);
  EXPECT_EQ(json.at("model_type"), "olmoe");
  EXPECT_EQ(json.at("architectures"), Json::array({"OlmoeForCausalLM"}));
  EXPECT_EQ(json.at("num_experts"), 4);
  EXPECT_EQ(json.at("intermediate_size"), 6);
  EXPECT_EQ(json.at("norm_topk_prob"), false);
  EXPECT_EQ(json.at("clip_qkv"), nullptr);
}

TEST(TransformersConfig, Mixtral) {
  const Json json = config_of(mixtral_case());
  EXPECT_EQ(json.at("model_type"), "mixtral");
  EXPECT_EQ(json.at("architectures"), Json::array({"MixtralForCausalLM"}));
  EXPECT_EQ(json.at("num_local_experts"), 4);
  EXPECT_EQ(json.at("intermediate_size"), 6);
  EXPECT_EQ(json.at("sliding_window"), nullptr);
}

// softmax over the chosen experts is softmax over all of them, divided by the sum.
TEST(TransformersConfig, SoftmaxAfterTheChoiceIsNormalised) {
  ModelCase model = qwen_case();
  model.config.moe.router.softmax_before_topk = false;
  model.config.moe.router.normalize_topk = false;
  EXPECT_EQ(config_of(model).at("norm_topk_prob"), true);
}

struct OwnCase {
  std::string name;
  ModelCase model;
  std::function<void(model::DecoderConfig&)> change;
};
void PrintTo(const OwnCase& c, std::ostream* out) { *out << c.name; }
class ModelOfNoFamily : public ::testing::TestWithParam<OwnCase> {};

TEST_P(ModelOfNoFamily, IsNobodyElses) {
  ModelCase model = GetParam().model;
  GetParam().change(model.config);
  const Json json = config_of(model);
  EXPECT_EQ(json.at("model_type"), "spillway_moe");
  EXPECT_FALSE(json.contains("architectures"));
  EXPECT_EQ(json.at("n_routed_experts"), 4);
}
INSTANTIATE_TEST_SUITE_P(
    Models, ModelOfNoFamily,
    ::testing::Values(
        OwnCase{"Deepseek", deepseek_case(), [](auto&) {}},
        OwnCase{"SharedExperts", qwen_case(), [](auto& c) { c.moe.shared_experts = 1; }},
        OwnCase{"ScaledWeights", qwen_case(), [](auto& c) { c.moe.router.scale = 2.5; }},
        OwnCase{"MixtralWithoutNormalisation", mixtral_case(),
                [](auto& c) { c.moe.router.normalize_topk = false; }},
        OwnCase{"MixtralTopOne", mixtral_case(), [](auto& c) { c.moe.top_k = 1; }},
        OwnCase{"OlmoeWithFreeHeads", olmoe_case(), [](auto& c) { c.model.head_dim = 6; }}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace spillway::checkpoint
