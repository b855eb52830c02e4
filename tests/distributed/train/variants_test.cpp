// Shapes of model, dtypes and optimizers that a config may ask for run at every world, and bf16
// stays near f32.
#include <cmath>

#include "support/train_fixture.h"

namespace spillway::train {
namespace {

struct Variant {
  const char* name;
  void (*apply)(config::Config& config);
};

const Variant kVariants[] = {
    {"qk_norm_head", [](config::Config& c) { c.model.qk_norm = model::QkNorm::kHead; }},
    {"qk_norm_full", [](config::Config& c) { c.model.qk_norm = model::QkNorm::kFull; }},
    {"first_dense", [](config::Config& c) { c.model.first_dense_layers = 1; }},
    {"all_dense", [](config::Config& c) { c.model.first_dense_layers = 2; }},
    {"shared_expert", [](config::Config& c) { c.moe.shared_experts = 1; }},
    {"tied_embeddings", [](config::Config& c) { c.model.tie_embeddings = true; }},
    {"top_1", [](config::Config& c) { c.moe.top_k = 1; }},
    {"top_all", [](config::Config& c) { c.moe.top_k = c.moe.experts; }},
    {"softmax_after_topk", [](config::Config& c) { c.moe.router.softmax_before_topk = false; }},
    {"sigmoid_groups_bias",
     [](config::Config& c) {
       c.moe.router.score = moe::ScoreFunction::kSigmoid;
       c.moe.router.scale = 2.446;
       c.moe.router.groups = 4;
       c.moe.router.topk_groups = 2;
       c.moe.router.bias_update_rate = 0.001;
       c.moe.router.aux_loss = moe::AuxLoss::kSequence;
     }},
    {"sqrtsoftplus_global",
     [](config::Config& c) {
       c.moe.router.score = moe::ScoreFunction::kSqrtSoftplus;
       c.moe.router.aux_loss = moe::AuxLoss::kGlobal;
     }},
    {"softmax_groups_bias",
     [](config::Config& c) {
       c.moe.router.groups = 2;
       c.moe.router.topk_groups = 1;
       c.moe.router.bias_update_rate = 0.001;
     }},
    {"no_clip_no_decay",
     [](config::Config& c) {
       c.optim.clip = 0.0;
       c.optim.weight_decay = 0.0;
     }},
    {"balanced_routing",
     [](config::Config& c) { c.moe.router.force = moe::ForceRouting::kBalanced; }},
    {"large_alignment", [](config::Config& c) { c.moe.alignment = 128; }},
};

using Parameters = std::tuple<Variant, DType>;

class VariantTest : public TrainTest, public testing::WithParamInterface<Parameters> {};

TEST_P(VariantTest, TwoStepsAtEveryEp) {
  const auto& [variant, dtype] = GetParam();
  for (int ep = 1; ep <= world().size(); ep *= 2) {
    SCOPED_TRACE(str("ep ", ep));
    config::Config config = with_split(base_config(), {ep, world().size() / ep}, 1, 2);
    config.run.dtype = dtype;
    config.optim = {.lr = 5e-3, .min_lr = 5e-4, .warmup_steps = 0};
    config.moe.router.aux_loss = moe::AuxLoss::kSwitch;
    config.moe.router.aux_coef = 0.01;
    config.moe.router.z_coef = 0.001;
    variant.apply(config);
    TrainRun run(world(), config);
    const uint64_t before = weights_checksum(run);
    const StepResults steps = train_steps(run, 1, 2);
    EXPECT_NE(weights_checksum(run), before);
    for (const Trainer::StepResult& step : steps) {
      EXPECT_FALSE(step.record.skipped);
      EXPECT_GT(step.record.grad_norm, 0.0);
      // Near the entropy of 258 equally likely tokens: nothing has been learnt, nothing exploded.
      EXPECT_NEAR(step.record.loss, std::log(258.0), 1.0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VariantTest,
                         testing::Combine(testing::ValuesIn(kVariants),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return str(std::get<0>(test.param).name, "_",
                                      dtype_name(std::get<1>(test.param)));
                         });

// bf16 keeps 8 bits: 0.4 % a rounding. Over a mean of some thousand tokens most of it averages out.
constexpr double kBf16LossTolerance = 0.01;
constexpr int64_t kSteps = 8;

class Bf16Test : public TrainTest, public testing::WithParamInterface<Split> {};

TEST_P(Bf16Test, LossStaysNearThatOfF32) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config config = with_split(base_config(), GetParam(), 8 / GetParam().world(), 1);
  config.optim = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 0};
  config.train.steps = kSteps;
  TrainRun full(*ranks, config);
  config.run.dtype = DType::kBF16;
  TrainRun half(*ranks, config);
  const StepResults a = train_steps(full, 1, kSteps), b = train_steps(half, 1, kSteps);
  for (size_t s = 0; s < a.size(); ++s) {
    EXPECT_TRUE(close(b[s].record.loss, a[s].record.loss, kBf16LossTolerance)) << "step " << s + 1;
  }
  EXPECT_LT(b.back().record.loss, b.front().record.loss - 0.5) << "it learns";
  EXPECT_FALSE(same_bits(b.front().record.loss, a.front().record.loss)) << "it is bf16";
}

INSTANTIATE_TEST_SUITE_P(Splits, Bf16Test, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

// ---- not finite ---------------------------------------------------------------------------------

class DivergenceTest : public TrainTest, public testing::WithParamInterface<Split> {
 protected:
  config::Config config(config::OnNonfinite action) const {
    config::Config c = with_split(base_config(), GetParam(), 1, 1);
    c.train.on_nonfinite = action;
    return c;
  }
  /// A NaN in the experts of the last EP index, on all its replicas.
  static void poison(TrainRun& run) {
    Tensor value = run.trainer.parameters().at("model.layers.0.mlp.experts.down_proj").value;
    if (run.trainer.topology().ep_rank() == run.config.parallel.ep - 1) {
      for (float& element : value.span<float>()) element = std::nanf("");
    }
  }
};

TEST_P(DivergenceTest, StopsOnAllRanks) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun run(*ranks, config(config::OnNonfinite::kStop));
  run.trainer.step(1);
  poison(run);
  bool thrown = false;
  try {
    run.trainer.step(2);
  } catch (const DivergedError& error) {
    thrown = true;
    EXPECT_EQ(error.exit_code(), ExitCode::kDiverged);
    EXPECT_NE(std::string(error.what()).find("step 2"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("train.on_nonfinite"), std::string::npos);
  }
  EXPECT_TRUE(thrown);
}

TEST_P(DivergenceTest, SkipLeavesWeightsAlone) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun run(*ranks, config(config::OnNonfinite::kSkip));
  EXPECT_FALSE(run.trainer.step(1).record.skipped);
  poison(run);
  const uint64_t before = weights_checksum(run);
  const Trainer::StepResult step = run.trainer.step(2);
  EXPECT_TRUE(step.record.skipped);
  EXPECT_EQ(step.agreement.finite, 0);
  EXPECT_EQ(weights_checksum(run), before);
}

TEST_P(DivergenceTest, AnAbsurdLearningRateIsCaught) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config(config::OnNonfinite::kStop);
  c.optim = {.lr = 1e30, .min_lr = 1e30, .schedule = optim::Schedule::kConstant, .warmup_steps = 0};
  TrainRun run(*ranks, c);
  EXPECT_THROW(train_steps(run, 1, 5), DivergedError);
}

INSTANTIATE_TEST_SUITE_P(Splits, DivergenceTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

}  // namespace
}  // namespace spillway::train
