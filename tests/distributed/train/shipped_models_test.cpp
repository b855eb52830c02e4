// Small versions of the models in configs/: the files as they are, sizes scaled down, every switch
// kept. They train at 1, 2 and 4 ranks.
#include <cmath>

#include "spillway/config/json.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kSteps = 12;
// Random bytes cost ln 258 = 5.55 nats; what words and letters occur at all is learnt in a few
// steps. A model that learns nothing stays within hundredths of the start.
constexpr double kLeastFall = 0.5;

using Parameters = std::tuple<const char*, Split>;

class ShippedModelTest : public TrainTest, public testing::WithParamInterface<Parameters> {
 protected:
  config::Config small_version() const {
    const auto& [name, split] = GetParam();
    config::Config c = config::load(str(SPILLWAY_SOURCE_DIR "/configs/", name, ".json"));
    const config::Config base = base_config();
    c.run.dir = base.run.dir;
    c.run.dtype = DType::kF32;
    c.model.vocab_size = base.model.vocab_size;
    c.model.hidden = 32;
    c.model.layers = 2 + c.model.first_dense_layers;
    c.model.kv_heads = c.model.kv_heads < c.model.heads ? 2 : 4;
    c.model.heads = 4;
    c.model.head_dim = 8;
    c.model.max_seq = 32;
    c.model.dense_ffn = 48;
    c.moe.experts = 8;
    c.moe.top_k = std::min<int64_t>(c.moe.top_k, 3);
    c.moe.ffn = 16;
    c.moe.alignment = 8;
    c.data.train = base.data.train;
    c.data.seq = 32;
    c.optim.lr = 1e-2;
    c.optim.min_lr = 1e-3;
    c.optim.warmup_steps = 2;
    c.train = {.steps = kSteps, .check_replicas = 1};
    c.log = base.log;
    return with_split(c, split, 4 / split.world(), 2);
  }
};

TEST_P(ShippedModelTest, LearnsWithinAFewSteps) {
  const auto& [name, split] = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  const config::Config config = small_version();
  TrainRun run(*ranks, config);
  const StepResults steps = train_steps(run, 1, kSteps);
  for (const Trainer::StepResult& step : steps) {
    EXPECT_FALSE(step.record.skipped);
    EXPECT_TRUE(std::isfinite(step.record.grad_norm));
    EXPECT_EQ(step.agreement.dropped_assignments, 0) << "the files grow on overflow";
    EXPECT_GT(step.record.aux_loss, 0.9) << "near 1 a layer";
    EXPECT_LT(step.record.aux_loss, 4.0);
  }
  EXPECT_NEAR(steps.front().record.loss, std::log(258.0), 0.3);
  EXPECT_LT(steps.back().record.loss, steps.front().record.loss - kLeastFall);
  const bool biased = config.moe.router.bias_update_rate > 0.0;
  EXPECT_EQ(run.trainer.decoder().selection_biases().size(), biased ? 2U : 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedModelTest,
                         testing::Combine(testing::Values("olmoe-1b-7b", "qwen3-30b-a3b",
                                                          "mixtral-8x7b", "deepseek-style-16b"),
                                          testing::ValuesIn(all_splits())),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return str(name, "_", split_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace spillway::train
