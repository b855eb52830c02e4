// The files in configs/ are valid where they are meant to run, and have the published shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "spillway/config/validate.h"
#include "support.h"

namespace spillway::config {
namespace {

constexpr const char* kFolder = SPILLWAY_SOURCE_DIR "/configs";

std::string file_of(const std::string& name) { return str(kFolder, "/", name, ".json"); }

struct Shipped {
  const char* name;
  int64_t world;
  double billions;         ///< parameters of the published model, 0: do not ask
  double active_billions;  ///< of one token
};

// Weights by the shapes of attention, experts, router, dense layers and the two embeddings; norms
// are left out.
double billions_of_parameters(const Config& config, int64_t experts_per_token) {
  const model::DecoderConfig decoder = decoder_config(config);
  const auto hidden = static_cast<double>(config.model.hidden);
  const double attention = 2 * hidden * static_cast<double>(decoder.head_dim()) *
                           static_cast<double>(config.model.heads + config.model.kv_heads);
  const double experts = 3 * hidden * static_cast<double>(config.moe.ffn) *
                         static_cast<double>(experts_per_token + config.moe.shared_experts);
  const double router = hidden * static_cast<double>(config.moe.experts);
  const double dense = 3 * hidden * static_cast<double>(config.model.dense_ffn);
  const double embeddings = 2 * hidden * static_cast<double>(config.model.vocab_size);
  const auto num_dense = static_cast<double>(config.model.first_dense_layers);
  const auto num_layers = static_cast<double>(config.model.layers);
  return (num_layers * attention + (num_layers - num_dense) * (experts + router) +
          num_dense * dense + embeddings) /
         1e9;
}

class ShippedConfigs : public ::testing::TestWithParam<Shipped> {};

TEST_P(ShippedConfigs, LoadAndValidateWithoutWarning) {
  const Config config = load(file_of(GetParam().name));
  const std::vector<std::string> warnings = validate(config, GetParam().world);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  EXPECT_EQ(config.run.dir, std::string("runs/") + GetParam().name);
}

TEST_P(ShippedConfigs, HaveThePublishedNumberOfParameters) {
  if (GetParam().billions == 0) return;
  // Published numbers are rounded to three digits at best.
  constexpr double kRounding = 0.01;
  const Config config = load(file_of(GetParam().name));
  EXPECT_NEAR(billions_of_parameters(config, config.moe.experts) / GetParam().billions, 1,
              kRounding);
  EXPECT_NEAR(billions_of_parameters(config, config.moe.top_k) / GetParam().active_billions, 1,
              kRounding);
}

INSTANTIATE_TEST_SUITE_P(Files, ShippedConfigs,
                         ::testing::Values(Shipped{"demo", 4, 0, 0}, Shipped{"tiny", 1, 0, 0},
                                           Shipped{"bench-cpu", 1, 0, 0},
                                           Shipped{"olmoe-1b-7b", 8, 6.92, 1.28},
                                           Shipped{"qwen3-30b-a3b", 8, 30.5, 3.35},
                                           Shipped{"mixtral-8x7b", 8, 46.7, 12.9},
                                           // Moonlight's sizes; its attention (MLA) has 0.08 less.
                                           Shipped{"deepseek-style-16b", 8, 16.0, 3.0}),
                         [](const auto& p) {
                           std::string name = p.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ShippedConfigs, TinyRunsInWorldsOfTwoAndFour) {
  for (const int64_t ep : {1, 2, 4}) {
    const Config config = load(file_of("tiny"), {str("parallel.ep=", ep)});
    EXPECT_TRUE(validate(config, 4).empty()) << ep;
  }
}

TEST(ShippedConfigs, AreAllInTheTests) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names,
            (std::vector<std::string>{"bench-cpu", "deepseek-style-16b", "demo", "mixtral-8x7b",
                                      "olmoe-1b-7b", "qwen3-30b-a3b", "tiny"}));
}

TEST(ShippedConfigs, RoutersNormaliseAsPublished) {
  EXPECT_FALSE(load(file_of("olmoe-1b-7b")).moe.router.normalize_topk);
  EXPECT_TRUE(load(file_of("qwen3-30b-a3b")).moe.router.normalize_topk);
  EXPECT_TRUE(load(file_of("mixtral-8x7b")).moe.router.normalize_topk);
  EXPECT_EQ(load(file_of("olmoe-1b-7b")).model.qk_norm, model::QkNorm::kFull);
  EXPECT_EQ(load(file_of("qwen3-30b-a3b")).model.qk_norm, model::QkNorm::kHead);
  EXPECT_EQ(load(file_of("mixtral-8x7b")).model.qk_norm, model::QkNorm::kNone);
}

TEST(ShippedConfigs, TheDeepSeekStyleRouterIsMoonlights) {
  const Config config = load(file_of("deepseek-style-16b"));
  const moe::RouterConfig& router = config.moe.router;
  EXPECT_EQ(router.score, moe::ScoreFunction::kSigmoid);
  EXPECT_TRUE(router.normalize_topk);
  EXPECT_EQ(router.scale, 2.446);
  EXPECT_EQ(router.groups, 1);
  EXPECT_EQ(router.bias_update_rate, 0.001);
  EXPECT_EQ(router.aux_loss, moe::AuxLoss::kSequence);
  EXPECT_EQ(config.moe.shared_experts, 2);
  EXPECT_EQ(config.model.first_dense_layers, 1);
}

}  // namespace
}  // namespace spillway::config
