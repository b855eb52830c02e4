#include "spillway/checkpoint/tensor_names.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "support/checkpoint_fixture.h"

namespace spillway::checkpoint {
namespace {

struct FamilyCase {
  std::string name;
  model::DecoderConfig config;
  Family family;
};
void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name; }

template <typename F>
FamilyCase changed(const std::string& name, const ModelCase& from, Family family, F&& change) {
  FamilyCase c{name, from.config, family};
  change(c.config);
  return c;
}

std::vector<FamilyCase> family_cases() {
  const auto same = [](model::DecoderConfig&) {};
  return {
      changed("HeadNorms", qwen_case(), Family::kQwen3Moe, same),
      changed("FullNorms", olmoe_case(), Family::kOlmoe, same),
      changed("NoNorms", mixtral_case(), Family::kMixtral, same),
      changed("SharedExperts", qwen_case(), Family::kDeepseek,
              [](auto& c) { c.moe.shared_experts = 1; }),
      changed("Sigmoid", olmoe_case(), Family::kDeepseek,
              [](auto& c) { c.moe.router.score = moe::ScoreFunction::kSigmoid; }),
      changed("SqrtSoftplus", mixtral_case(), Family::kDeepseek,
              [](auto& c) { c.moe.router.score = moe::ScoreFunction::kSqrtSoftplus; }),
      changed("SelectionBias", qwen_case(), Family::kDeepseek,
              [](auto& c) { c.moe.router.bias_update_rate = 0.01; }),
      changed("Groups", qwen_case(), Family::kDeepseek, [](auto& c) { c.moe.router.groups = 2; }),
      changed("DenseLayers", mixtral_case(), Family::kDeepseek,
              [](auto& c) { c.model.first_dense_layers = 1; }),
      changed("DenseLayersOfQwen", qwen_case(), Family::kQwen3Moe,
              [](auto& c) { c.model.first_dense_layers = 1; }),
      changed("NoExperts", qwen_case(), Family::kDeepseek, [](auto& c) { c.moe.experts = 0; }),
  };
}

class FamilyNames : public ::testing::TestWithParam<FamilyCase> {};

TEST_P(FamilyNames, FamilyFollowsFromTheConfig) {
  EXPECT_EQ(family_of(GetParam().config), GetParam().family);
}

// Whatever the family: the tensors are every element of every parameter, once, under names that
// differ.
TEST_P(FamilyNames, TensorsCoverEveryParameterOnce) {
  std::map<std::string, int64_t> next;
  std::set<std::string> names;
  for (const FileTensor& tensor : file_tensors(GetParam().config, GetParam().family)) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    EXPECT_EQ(tensor.begin, next[tensor.parameter]) << tensor.name;
    next[tensor.parameter] += tensor.shape.numel();
  }
  for (const nn::ParameterSpec& spec : model::parameter_specs(GetParam().config, DType::kF32)) {
    EXPECT_EQ(next[spec.name], spec.shape.numel()) << spec.name;
    next.erase(spec.name);
  }
  EXPECT_TRUE(next.empty());
}
INSTANTIATE_TEST_SUITE_P(Families, FamilyNames, ::testing::ValuesIn(family_cases()),
                         [](const auto& c) { return c.param.name; });

// name -> "parameter from BEGIN SHAPE"
std::map<std::string, std::string> layer_names(const ModelCase& model, int64_t layer) {
  std::map<std::string, std::string> names;
  const std::string prefix = str("model.layers.", layer, ".");
  for (const FileTensor& t : file_tensors(model.config, family_of(model.config))) {
    if (!t.name.starts_with(prefix)) continue;
    names[t.name.substr(prefix.size())] =
        str(t.parameter.substr(prefix.size()), " from ", t.begin, " ", t.shape);
  }
  return names;
}

TEST(TensorNames, Qwen3Moe) {
  const auto names = layer_names(qwen_case(), 1);
  EXPECT_EQ(names.at("mlp.gate.weight"), "mlp.gate.weight from 0 [4, 8]");
  EXPECT_EQ(names.at("mlp.experts.0.gate_proj.weight"), "mlp.experts.gate_up_proj from 0 [6, 8]");
  EXPECT_EQ(names.at("mlp.experts.0.up_proj.weight"), "mlp.experts.gate_up_proj from 48 [6, 8]");
  EXPECT_EQ(names.at("mlp.experts.3.gate_proj.weight"), "mlp.experts.gate_up_proj from 288 [6, 8]");
  EXPECT_EQ(names.at("mlp.experts.3.down_proj.weight"), "mlp.experts.down_proj from 144 [8, 6]");
  EXPECT_EQ(names.at("self_attn.q_norm.weight"), "self_attn.q_norm.weight from 0 [4]");
  EXPECT_EQ(names.at("self_attn.k_proj.weight"), "self_attn.k_proj.weight from 0 [4, 8]");
  EXPECT_EQ(names.size(), 8u + 1u + 4u * 3u);  // attention and norms, router, experts
}

TEST(TensorNames, Olmoe) {
  const auto names = layer_names(olmoe_case(), 0);
  EXPECT_EQ(names.at("mlp.experts.2.up_proj.weight"), "mlp.experts.gate_up_proj from 240 [6, 8]");
  EXPECT_EQ(names.at("self_attn.q_norm.weight"), "self_attn.q_norm.weight from 0 [8]");
  EXPECT_EQ(names.at("self_attn.k_norm.weight"), "self_attn.k_norm.weight from 0 [4]");
}

TEST(TensorNames, Mixtral) {
  const auto names = layer_names(mixtral_case(), 0);
  EXPECT_EQ(names.at("block_sparse_moe.gate.weight"), "mlp.gate.weight from 0 [4, 8]");
  EXPECT_EQ(names.at("block_sparse_moe.experts.1.w1.weight"),
            "mlp.experts.gate_up_proj from 96 [6, 8]");
  EXPECT_EQ(names.at("block_sparse_moe.experts.1.w3.weight"),
            "mlp.experts.gate_up_proj from 144 [6, 8]");
  EXPECT_EQ(names.at("block_sparse_moe.experts.1.w2.weight"),
            "mlp.experts.down_proj from 48 [8, 6]");
  for (const auto& [name, what] : names) EXPECT_FALSE(name.starts_with("mlp.")) << name;
}

TEST(TensorNames, DeepseekStyle) {
  const auto dense = layer_names(deepseek_case(), 0);
  EXPECT_EQ(dense.at("mlp.gate_proj.weight"), "mlp.gate_up_proj.weight from 0 [10, 8]");
  EXPECT_EQ(dense.at("mlp.up_proj.weight"), "mlp.gate_up_proj.weight from 80 [10, 8]");
  EXPECT_EQ(dense.at("mlp.down_proj.weight"), "mlp.down_proj.weight from 0 [8, 10]");
  const auto moe = layer_names(deepseek_case(), 1);
  EXPECT_EQ(moe.at("mlp.shared_experts.gate_proj.weight"),
            "mlp.shared_experts.gate_up_proj.weight from 0 [12, 8]");
  EXPECT_EQ(moe.at("mlp.shared_experts.up_proj.weight"),
            "mlp.shared_experts.gate_up_proj.weight from 96 [12, 8]");
}

TEST(TensorNames, TiedEmbeddingsHaveNoOutputLayer) {
  model::DecoderConfig config = qwen_case().config;
  const auto has_head = [&config] {
    const auto tensors = file_tensors(config, Family::kQwen3Moe);
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const FileTensor& t) { return t.name == "lm_head.weight"; });
  };
  EXPECT_TRUE(has_head());
  config.model.tie_embeddings = true;
  EXPECT_FALSE(has_head());
}

}  // namespace
}  // namespace spillway::checkpoint
