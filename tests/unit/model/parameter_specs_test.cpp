// Names, shapes and numbers of the parameters of known models.
#include <gtest/gtest.h>

#include "model_fixture.h"
#include "spillway/core/math.h"

namespace spillway::model {
namespace {

DecoderConfig olmoe() {
  return {.model = {.vocab_size = 50304,
                    .hidden = 2048,
                    .layers = 16,
                    .heads = 16,
                    .kv_heads = 16,
                    .qk_norm = QkNorm::kFull},
          .moe = {.experts = 64, .top_k = 8, .ffn = 1024}};
}
DecoderConfig qwen3_30b() {
  return {.model = {.vocab_size = 151936,
                    .hidden = 2048,
                    .layers = 48,
                    .heads = 32,
                    .kv_heads = 4,
                    .head_dim = 128,
                    .qk_norm = QkNorm::kHead},
          .moe = {.experts = 128, .top_k = 8, .ffn = 768}};
}
DecoderConfig mixtral() {
  return {.model = {.vocab_size = 32000,
                    .hidden = 4096,
                    .layers = 32,
                    .heads = 32,
                    .kv_heads = 8,
                    .head_dim = 128},
          .moe = {.experts = 8, .top_k = 2, .ffn = 14336}};
}

struct KnownModel {
  const char* label;
  DecoderConfig config;
  double total, active;  ///< published, in units of 1e9
};
class KnownModels : public ::testing::TestWithParam<KnownModel> {};

TEST_P(KnownModels, HaveThePublishedNumberOfParameters) {
  // Published numbers are rounded to two or three digits.
  constexpr double kRounding = 0.01;
  const ParameterCounts counts = count_parameters(GetParam().config);
  RecordProperty("total", std::to_string(counts.total));
  RecordProperty("active", std::to_string(counts.active));
  std::cout << GetParam().label << ": " << counts.total << " parameters, " << counts.active
            << " active\n";
  EXPECT_NEAR(static_cast<double>(counts.total) / 1e9, GetParam().total,
              kRounding * GetParam().total);
  EXPECT_NEAR(static_cast<double>(counts.active) / 1e9, GetParam().active,
              kRounding * GetParam().active);
}

TEST_P(KnownModels, CountsAreSumsOverTheSpecs) {
  const DecoderConfig& config = GetParam().config;
  int64_t total = 0, active = 0;
  for (const nn::ParameterSpec& spec : parameter_specs(config, DType::kBF16)) {
    EXPECT_EQ(spec.dtype, DType::kBF16);
    total += spec.shape.numel();
    const bool expert = spec.sync == nn::SyncGroup::kExpert;
    active += expert ? spec.local_shape(config.moe.experts).numel() * config.moe.top_k
                     : spec.shape.numel();
  }
  EXPECT_EQ(count_parameters(config).total, total);
  EXPECT_EQ(count_parameters(config).active, active);
}

INSTANTIATE_TEST_SUITE_P(, KnownModels,
                         ::testing::Values(KnownModel{"olmoe_1b_7b", olmoe(), 6.92, 1.28},
                                           KnownModel{"qwen3_30b_a3b", qwen3_30b(), 30.5, 3.35},
                                           KnownModel{"mixtral_8x7b", mixtral(), 46.7, 12.9}),
                         [](const auto& param) { return param.param.label; });

std::vector<std::string> names_and_shapes(const DecoderConfig& config) {
  std::vector<std::string> lines;
  for (const nn::ParameterSpec& spec : parameter_specs(config, DType::kF32)) {
    lines.push_back(str(spec.name, " ", spec.shape));
  }
  return lines;
}

bool contains(const std::vector<std::string>& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

struct NamedShape {
  const char* label;
  DecoderConfig config;
  const char* line;
};
class KnownNames : public ::testing::TestWithParam<NamedShape> {};

TEST_P(KnownNames, AreThoseOfTransformers) {
  EXPECT_TRUE(contains(names_and_shapes(GetParam().config), GetParam().line)) << GetParam().line;
}

INSTANTIATE_TEST_SUITE_P(
    , KnownNames,
    ::testing::Values(
        NamedShape{"olmoe_embedding", olmoe(), "model.embed_tokens.weight [50304, 2048]"},
        NamedShape{"olmoe_q_norm", olmoe(), "model.layers.0.self_attn.q_norm.weight [2048]"},
        NamedShape{"olmoe_router", olmoe(), "model.layers.15.mlp.gate.weight [64, 2048]"},
        NamedShape{"olmoe_experts", olmoe(),
                   "model.layers.15.mlp.experts.gate_up_proj [64, 2048, 2048]"},
        NamedShape{"olmoe_output", olmoe(), "lm_head.weight [50304, 2048]"},
        NamedShape{"qwen3_k_norm", qwen3_30b(), "model.layers.47.self_attn.k_norm.weight [128]"},
        NamedShape{"qwen3_q_proj", qwen3_30b(),
                   "model.layers.0.self_attn.q_proj.weight [4096, 2048]"},
        NamedShape{"qwen3_v_proj", qwen3_30b(),
                   "model.layers.0.self_attn.v_proj.weight [512, 2048]"},
        NamedShape{"qwen3_down", qwen3_30b(),
                   "model.layers.0.mlp.experts.down_proj [128, 2048, 768]"},
        NamedShape{"mixtral_norm", mixtral(),
                   "model.layers.31.post_attention_layernorm.weight [4096]"},
        NamedShape{"mixtral_o_proj", mixtral(),
                   "model.layers.31.self_attn.o_proj.weight [4096, 4096]"},
        NamedShape{"mixtral_experts", mixtral(),
                   "model.layers.0.mlp.experts.gate_up_proj [8, 28672, 4096]"}),
    [](const auto& param) { return param.param.label; });

TEST(ParameterSpecs, OfATinyModelAreThese) {
  EXPECT_EQ(
      names_and_shapes(tiny_config()),
      (std::vector<std::string>{"model.embed_tokens.weight [11, 8]",
                                "model.layers.0.input_layernorm.weight [8]",
                                "model.layers.0.self_attn.q_proj.weight [16, 8]",
                                "model.layers.0.self_attn.k_proj.weight [8, 8]",
                                "model.layers.0.self_attn.v_proj.weight [8, 8]",
                                "model.layers.0.self_attn.o_proj.weight [8, 16]",
                                "model.layers.0.self_attn.q_norm.weight [4]",
                                "model.layers.0.self_attn.k_norm.weight [4]",
                                "model.layers.0.post_attention_layernorm.weight [8]",
                                "model.layers.0.mlp.gate_up_proj.weight [20, 8]",
                                "model.layers.0.mlp.down_proj.weight [8, 10]",
                                "model.layers.1.input_layernorm.weight [8]",
                                "model.layers.1.self_attn.q_proj.weight [16, 8]",
                                "model.layers.1.self_attn.k_proj.weight [8, 8]",
                                "model.layers.1.self_attn.v_proj.weight [8, 8]",
                                "model.layers.1.self_attn.o_proj.weight [8, 16]",
                                "model.layers.1.self_attn.q_norm.weight [4]",
                                "model.layers.1.self_attn.k_norm.weight [4]",
                                "model.layers.1.post_attention_layernorm.weight [8]",
                                "model.layers.1.mlp.gate.weight [4, 8]",
                                "model.layers.1.mlp.experts.gate_up_proj [4, 12, 8]",
                                "model.layers.1.mlp.experts.down_proj [4, 8, 6]",
                                "model.layers.1.mlp.shared_experts.gate_up_proj.weight [12, 8]",
                                "model.layers.1.mlp.shared_experts.down_proj.weight [8, 6]",
                                "model.norm.weight [8]",
                                "lm_head.weight [11, 8]"}));
}

TEST(ParameterSpecs, TiedEmbeddingsHaveNoOutputWeight) {
  DecoderConfig config = tiny_config();
  const int64_t untied = count_parameters(config).total;
  config.model.tie_embeddings = true;
  EXPECT_EQ(untied - count_parameters(config).total, 11 * 8);
  EXPECT_FALSE(contains(names_and_shapes(config), "lm_head.weight [11, 8]"));
}

TEST(ParameterSpecs, NormsDoNotDecayAndOnlyExpertsAreSplit) {
  for (const nn::ParameterSpec& spec : parameter_specs(olmoe(), DType::kF32)) {
    EXPECT_EQ(spec.decay, spec.shape.rank() > 1) << spec.name;
    const bool expert = spec.name.find(".experts.") != std::string::npos;
    EXPECT_EQ(spec.sync == nn::SyncGroup::kExpert, expert) << spec.name;
  }
}

TEST(ParameterSpecs, ProjectionsIntoTheResidualStreamStartSmallerWithDepth) {
  const DecoderConfig config = tiny_config();
  const double smaller = 0.02 / std::sqrt(2.0 * 2.0);
  for (const nn::ParameterSpec& spec : parameter_specs(config, DType::kF32)) {
    if (spec.init.kind != nn::Init::Kind::kNormal) continue;
    const bool into_stream = spec.name.find("o_proj") != std::string::npos ||
                             spec.name.find("down_proj") != std::string::npos;
    EXPECT_DOUBLE_EQ(spec.init.std, into_stream ? smaller : 0.02) << spec.name;
  }
}

TEST(ParameterSpecs, AllocateNothing) {
  // Specs of a model of 1e11 bytes: no context is at hand, so nothing can be allocated; the
  // store of a tiny one holds what its specs say.
  EXPECT_GT(count_parameters(mixtral()).total, int64_t{40'000'000'000});
  Context ctx;
  const auto specs = parameter_specs(tiny_config(), DType::kF32);
  EXPECT_EQ(ctx.allocator()->total().peak_bytes, 0);
  const nn::ParameterStore store(ctx, specs, 1, 1, 0);
  int64_t elements = 0;
  for (const nn::ParameterSpec& spec : specs) {
    elements += round_up(spec.shape.numel(), nn::ParameterStore::kGradientAlignment);
  }
  EXPECT_GE(elements, count_parameters(tiny_config()).total);
  EXPECT_EQ(ctx.allocator()->use(Purpose::kWeights).current_bytes, 4 * elements);
}

TEST(ParameterSpecs, ADenseModelHasNoExperts) {
  DecoderConfig config = tiny_config();
  config.moe.experts = 0;
  EXPECT_TRUE(config.moe_layers().empty());
  for (const nn::ParameterSpec& spec : parameter_specs(config, DType::kF32)) {
    EXPECT_EQ(spec.sync, nn::SyncGroup::kDense) << spec.name;
  }
  EXPECT_EQ(count_parameters(config).total, count_parameters(config).active);
}

}  // namespace
}  // namespace spillway::model
