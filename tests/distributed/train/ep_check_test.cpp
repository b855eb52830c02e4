// The EP self-check: it agrees where it must, and finds and names what was made wrong.
#include "spillway/train/ep_check.h"

#include <cmath>

#include "spillway/config/validate.h"
#include "spillway/core/rng.h"
#include "spillway/model/decoder.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// ---- both runs, as the program makes them -------------------------------------------------------

struct Variant {
  const char* name;
  void (*apply)(config::Config& config);
};

const Variant kVariants[] = {
    {"plain", [](config::Config&) {}},
    {"bf16", [](config::Config& c) { c.run.dtype = DType::kBF16; }},
    {"sigmoid_with_terms",
     [](config::Config& c) {
       c.moe.router.score = moe::ScoreFunction::kSigmoid;
       c.moe.router.aux_loss = moe::AuxLoss::kGlobal;
       c.moe.router.aux_coef = 0.01;
       c.moe.router.z_coef = 0.001;
     }},
    {"deepseek_like",
     [](config::Config& c) {
       c.model.layers = 3;
       c.model.first_dense_layers = 1;
       c.moe.shared_experts = 1;
       c.moe.router.score = moe::ScoreFunction::kSigmoid;
       c.moe.router.scale = 2.5;
       c.moe.router.groups = 4;
       c.moe.router.topk_groups = 2;
       c.moe.router.bias_update_rate = 0.001;
       c.moe.router.aux_loss = moe::AuxLoss::kSequence;
       c.moe.router.aux_coef = 0.01;
     }},
    {"softmax_of_chosen_grad_accum",
     [](config::Config& c) {
       c.moe.router.softmax_before_topk = false;
       c.moe.router.aux_loss = moe::AuxLoss::kSwitch;
       c.moe.router.aux_coef = 0.01;
       c.train.grad_accum = 2;
     }},
    {"zero", [](config::Config& c) { c.parallel.zero = 1; }},
    {"recompute_saved_fused_bf16",
     [](config::Config& c) {
       c.run.dtype = DType::kBF16;
       c.recompute = {.region = model::RecomputeRegion::kLayer, .save = {"dispatch"}};
       c.ep.fused_prepare = true;
       c.moe.alignment = 8;
     }},
    // Too small for the demand: drops would depend on ep.
    {"tight_buffers_that_drop",
     [](config::Config& c) {
       c.capacity.policy = "factor";
       c.capacity.factor.factor = 0.5;
       c.capacity.on_overflow = capacity::OnOverflow::kDrop;
     }},
};

class EpCheckRunTest : public TrainTest, public testing::WithParamInterface<Variant> {
 protected:
  EpCheckResult check(const config::Config& config) {
    config::validate(config, world().size());
    Context ctx(Device::kCpu, 1);
    return check_ep(ctx, world(), config);
  }
};

TEST_P(EpCheckRunTest, AgreesAtEveryEp) {
  for (int ep = 2; ep <= world().size(); ep *= 2) {
    SCOPED_TRACE(str("ep ", ep));
    config::Config config = with_split(base_config(), {ep, world().size() / ep}, 1, 1);
    GetParam().apply(config);
    const EpCheckResult result = check(config);
    EXPECT_TRUE(result.agrees) << result.text;
    if (!is_root()) continue;
    EXPECT_NE(result.text.find(str("ep ", ep, " agrees with ep 1 over 2 steps")), std::string::npos)
        << result.text;
    EXPECT_EQ(result.text.find("DIFFERS"), std::string::npos) << result.text;
    EXPECT_NE(result.text.find("model.layers.*.mlp.experts.down_proj"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EpCheckRunTest, testing::ValuesIn(kVariants),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(EpCheckRunTest, NothingToCompareAtEpOne) {
  const EpCheckResult result = check(base_config());
  EXPECT_TRUE(result.agrees);
  EXPECT_NE(result.text.find("nothing to compare"), std::string::npos) << result.text;
}

// ---- the comparison, given what two runs would have shown ---------------------------------------

constexpr uint64_t kSeed = 41;
constexpr int64_t kSteps = 2;

/// Two runs that agree to the last bit, until a test changes the second.
class EpCheckComparisonTest : public TrainTest {
 protected:
  EpCheckComparisonTest()
      : config_(with_split(base_config(), {world().size(), 1}, 1, 1)),
        topology_(world(), world().size()),
        one_(make_run()),
        other_(make_run()),
        flips_(kSteps) {}

  /// What rank 0 says; the verdict is checked to be `agrees` on all ranks.
  std::string compare(bool agrees) {
    const EpCheckResult result = compare_ep_runs(config_, topology_, one_, other_, flips_);
    EXPECT_EQ(result.agrees, agrees) << result.text;
    return is_root() ? result.text : "";
  }
  /// The text says all of it, and in its last line that the check failed.
  void expect_found(const std::vector<std::string>& words) {
    const std::string text = compare(false);
    if (!is_root()) return;
    const size_t last = text.rfind("ep check FAILED: ");
    ASSERT_NE(last, std::string::npos) << text;
    EXPECT_EQ(text.find('\n', last), std::string::npos) << text;
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word, last), std::string::npos) << word << " in\n" << text;
    }
  }
  int ep() const { return topology_.ep(); }
  /// Multiplies the values of every parameter that has `part` in its name.
  static void scale(HeldValues& held, const std::string& part, double factor) {
    int64_t scaled = 0;
    for (auto& [name, values] : held) {
      if (name.find(part) == std::string::npos) continue;
      ++scaled;
      for (float& value : values) value = static_cast<float>(value * factor);
    }
    SPILLWAY_CHECK(scaled > 0, "no parameter has ", part, " in its name");
  }

  config::Config config_;
  comm::Topology topology_;
  std::vector<EpCheckStep> one_, other_;
  std::vector<EpCheckFlips> flips_;

 private:
  HeldValues make_values(Rng& rng) const {
    HeldValues values;
    const DType dtype = config::compute_dtype(config_);
    for (const nn::ParameterSpec& spec :
         model::parameter_specs(config::decoder_config(config_), dtype)) {
      std::vector<float>& held = values[spec.name];
      held.resize(static_cast<size_t>(spec.local_shape(topology_.ep()).numel()));
      for (float& value : held) value = static_cast<float>(rng.below(2001)) / 1000.0F - 1.0F;
    }
    return values;
  }
  std::vector<EpCheckStep> make_run() const {
    Rng rng(kSeed);  // the same on every call
    std::vector<EpCheckStep> steps(kSteps);
    for (EpCheckStep& step : steps) {
      step.loss = 5.5;
      step.aux_loss = 1.01;
      step.z_loss = 4.3;
      step.grad_norm = 1.4;
      step.expert_counts = {{10, 11, 12, 13, 14, 15, 16, 17}, {17, 16, 15, 14, 13, 12, 11, 10}};
      step.gradients = make_values(rng);
      step.weights = make_values(rng);
    }
    return steps;
  }
};

TEST_F(EpCheckComparisonTest, EqualRunsAgree) {
  const std::string text = compare(true);
  if (is_root()) {
    EXPECT_NE(text.find("agrees with ep 1 over 2 steps"), std::string::npos) << text;
  }
}

TEST_F(EpCheckComparisonTest, RoundingAgrees) {
  scale(other_[0].gradients, "", 1.0 + 1e-6);
  other_[0].grad_norm *= 1.0 + 1e-6;
  other_[1].loss *= 1.0 + 1e-7;
  compare(true);
}

TEST_F(EpCheckComparisonTest, ExpertGradientsTooLargeByTheGroupAreNamed) {
  for (EpCheckStep& step : other_) scale(step.gradients, "mlp.experts.", std::max(ep(), 2));
  // Two groups in two steps.
  expect_found({"step 1", "gradient", "model.layers.*.mlp.experts.", "(and 3 more)"});
}

TEST_F(EpCheckComparisonTest, OneLayerOfOneRankIsFoundAndNamed) {
  if (world().rank() == world().size() - 1) {
    scale(other_[0].gradients, "layers.1.mlp.experts.down_proj", 1.001);
  }
  expect_found({"step 1", "gradient", "mlp.experts.down_proj", "layer 1"});
}

TEST_F(EpCheckComparisonTest, ACopyOfADenseGradientOnAnotherRankIsFound) {
  if (world().rank() == world().size() - 1) scale(other_[0].gradients, "lm_head", 1.001);
  expect_found({"gradient lm_head.weight"});
}

TEST_F(EpCheckComparisonTest, NormWithoutExpertsIsFound) {
  other_[0].grad_norm *= 0.9;
  expect_found({"step 1", "norm"});
}

TEST_F(EpCheckComparisonTest, BalanceTermScaledByTheGroupIsFound) {
  other_[0].aux_loss *= 2.0;
  expect_found({"step 1", "aux loss"});
}

TEST_F(EpCheckComparisonTest, WeightsAfterTheSecondStepAreCompared) {
  scale(other_[1].weights, "layers.0.self_attn.o_proj", 1.001);
  expect_found({"step 2", "weights", "self_attn.o_proj.weight"});
}

TEST_F(EpCheckComparisonTest, ChangedCountsAreFound) {
  other_[0].expert_counts[1][3] += 1;
  other_[0].expert_counts[1][4] -= 1;
  expect_found({"step 1", "layer 1"});
}

TEST_F(EpCheckComparisonTest, NanIsFoundWhateverComesAfterIt) {
  if (world().rank() == 0) {
    other_[0].gradients.at("model.layers.0.mlp.gate.weight").front() = std::nanf("");
  }
  expect_found({"gradient", "mlp.gate.weight"});
}

TEST_F(EpCheckComparisonTest, GradientsThatShouldBeZeroAreFound) {
  scale(one_[0].gradients, "mlp.gate", 0.0);
  expect_found({"gradient", "mlp.gate.weight"});
}

TEST_F(EpCheckComparisonTest, AFlipAtATieEndsTheComparison) {
  const double limit = ep_check_tolerance(DType::kF32).margin;
  if (world().rank() == world().size() - 1)
    flips_[1] = {.tokens = 1, .margin = limit / 2, .layer = 1};
  other_[1].expert_counts[1][3] += 1;
  other_[1].expert_counts[1][4] -= 1;
  scale(other_[1].gradients, "mlp.experts.", 1.01);
  const std::string text = compare(true);
  if (!is_root()) return;
  EXPECT_NE(text.find("over 1 step"), std::string::npos) << text;
  EXPECT_NE(text.find("step 2: 1 tokens went to other experts"), std::string::npos) << text;
}

TEST_F(EpCheckComparisonTest, AFlipFarFromATieIsAMismatch) {
  const double limit = ep_check_tolerance(DType::kF32).margin;
  if (world().rank() == world().size() - 1)
    flips_[1] = {.tokens = 3, .margin = limit * 2, .layer = 1};
  expect_found({"step 2", "3 tokens", "layer 1"});
}

TEST_F(EpCheckComparisonTest, NothingComparedIsNoAgreement) {
  const double limit = ep_check_tolerance(DType::kF32).margin;
  flips_[0] = {.tokens = 1, .margin = limit / 2, .layer = 0};
  expect_found({"step 1", "other experts"});
}

// ---- flips and how near a tie they were ---------------------------------------------------------

struct FlipCase {
  const char* name;
  void (*apply)(moe::RouterConfig& router);
  std::vector<float> logits;        ///< of the one token, 4 experts
  std::vector<float> bias;          ///< empty: none
  std::vector<int32_t> one, other;  ///< the chosen
  int64_t tokens = 0;
  double margin = 0.0;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

const FlipCase kFlipCases[] = {
    {"same", [](moe::RouterConfig&) {}, {3, 2, 1, 0}, {}, {0, 1}, {0, 1}, 0, 0.0},
    {"same_in_another_order", [](moe::RouterConfig&) {}, {3, 2, 1, 0}, {}, {0, 1}, {1, 0}, 0, 0.0},
    {"logits",
     [](moe::RouterConfig& r) { r.softmax_before_topk = false; },
     {3, 2, 1.5, 0},
     {},
     {0, 1},
     {0, 2},
     1,
     0.5},
    {"probabilities", [](moe::RouterConfig&) {}, {0, 0, 0, 0}, {}, {0, 1}, {2, 3}, 1, 0.0},
    {"sigmoid",
     [](moe::RouterConfig& r) { r.score = moe::ScoreFunction::kSigmoid; },
     {3, 2, 1, 0},
     {},
     {0, 1},
     {0, 2},
     1,
     sigmoid(2) - sigmoid(1)},
    {"the_bias_takes_part",
     [](moe::RouterConfig& r) { r.score = moe::ScoreFunction::kSigmoid; },
     {3, 0, 0, -3},
     {0, 0.25, 0, 0},
     {0, 1},
     {0, 2},
     1,
     0.25},
    // Groups {0,1} and {2,3} tie; their experts do not.
    {"a_group_flips",
     [](moe::RouterConfig& r) {
       r.score = moe::ScoreFunction::kSigmoid;
       r.groups = 2;
       r.topk_groups = 1;
     },
     {2, -2, 0, 0},
     {},
     {0, 1},
     {2, 3},
     1,
     0.0},
};

class EpCheckFlipTest : public testing::TestWithParam<FlipCase> {};

TEST_P(EpCheckFlipTest, CountsTokensAndMargin) {
  constexpr double kDoubleRounding = 1e-7;  // logits and biases are f32
  const FlipCase& c = GetParam();
  config::Config config;
  config.model.layers = 1;
  config.moe.experts = 4;
  config.moe.top_k = 2;
  c.apply(config.moe.router);
  Context ctx(Device::kCpu, 1);
  const auto step_of = [&](const std::vector<int32_t>& chosen) {
    EpCheckStep step;
    Tensor choices = Tensor::empty(ctx, {1, 2}, DType::kI32);
    std::copy(chosen.begin(), chosen.end(), choices.data<int32_t>());
    Tensor logits = Tensor::empty(ctx, {1, 4}, DType::kF32);
    std::copy(c.logits.begin(), c.logits.end(), logits.data<float>());
    step.choices = {choices};
    step.logits = {logits};
    if (!c.bias.empty()) {
      Tensor bias = Tensor::empty(ctx, {4}, DType::kF32);
      std::copy(c.bias.begin(), c.bias.end(), bias.data<float>());
      step.biases = {bias};
    }
    return step;
  };
  const EpCheckFlips flips = find_flips(config, step_of(c.one), step_of(c.other));
  EXPECT_EQ(flips.tokens, c.tokens);
  EXPECT_NEAR(flips.margin, c.margin, kDoubleRounding);
  EXPECT_EQ(flips.layer, c.tokens > 0 ? 0 : -1);
}

INSTANTIATE_TEST_SUITE_P(Routers, EpCheckFlipTest, testing::ValuesIn(kFlipCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway::train
