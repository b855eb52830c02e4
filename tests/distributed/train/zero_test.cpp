// parallel.zero = 1 trains what parallel.zero = 0 trains. Without clipping losses and weights have
// the same bits. The norm is added in another order, so that it, and a clipped run, are equal
// to rounding.
#include <cmath>

#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kSteps = 4;
// f64 sums of some ten thousand squares in another order.
constexpr double kNormTolerance = 1e-13;
// A clip factor that differs by one f32 rounding (6e-8), over a few steps close to plain descent.
constexpr double kClippedTolerance = 1e-6;
constexpr double kBytesTolerance = 0.01;

struct Variant {
  const char* name;
  void (*apply)(config::Config& config);
};

const Variant kVariants[] = {
    {"plain", [](config::Config&) {}},
    {"grad_accum", [](config::Config& c) { c.train.grad_accum = 3; }},
    {"tied_dense_first_shared",
     [](config::Config& c) {
       c.model.first_dense_layers = 1;
       c.model.tie_embeddings = true;
       c.moe.shared_experts = 1;
     }},
};

struct Ending {
  StepResults steps;
  NamedValues weights;
};

class ZeroTest : public TrainTest {
 protected:
  config::Config config(const Split& split, DType dtype, int64_t zero) const {
    config::Config c = with_split(base_config(), split, 1, 1);
    c.run.dtype = dtype;
    c.parallel.zero = zero;
    c.moe.router.aux_loss = moe::AuxLoss::kSwitch;
    c.moe.router.aux_coef = 0.01;
    return c;
  }
  /// An ordinary AdamW run.
  config::Config unclipped(const Split& split, DType dtype, int64_t zero) const {
    config::Config c = config(split, dtype, zero);
    c.optim = {.lr = 2e-3, .min_lr = 2e-4, .warmup_steps = 2, .clip = 0.0};
    return c;
  }
  static Ending train(comm::Communicator& ranks, const config::Config& c) {
    TrainRun run(ranks, c);
    Ending ending{.steps = train_steps(run, 1, kSteps), .weights = {}};
    ending.weights = gather_weights(run);
    return ending;
  }
};

// ---- equal to whole state -----------------------------------------------------------------------

class ZeroParityTest : public ZeroTest,
                       public testing::WithParamInterface<std::tuple<Split, DType, Variant>> {};

TEST_P(ZeroParityTest, WithoutClippingTheBitsAreThoseOfWholeState) {
  const auto& [split, dtype, variant] = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  config::Config c = unclipped(split, dtype, 0);
  variant.apply(c);
  const Ending whole = train(*ranks, c);
  c.parallel.zero = 1;
  const Ending zero = train(*ranks, c);
  if (ranks->rank() != 0) return;
  for (size_t s = 0; s < whole.steps.size(); ++s) {
    const metrics::StepRecord& a = whole.steps[s].record;
    const metrics::StepRecord& b = zero.steps[s].record;
    EXPECT_TRUE(same_bits(b.loss, a.loss)) << "step " << s + 1;
    EXPECT_TRUE(close(b.grad_norm, a.grad_norm, kNormTolerance)) << "step " << s + 1;
    EXPECT_FALSE(b.skipped);
  }
  EXPECT_TRUE(same_bits(zero.weights, whole.weights));
}

INSTANTIATE_TEST_SUITE_P(Splits, ZeroParityTest,
                         testing::Combine(testing::ValuesIn(all_splits()),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::ValuesIn(kVariants)),
                         [](const auto& test) {
                           return str(split_name(std::get<0>(test.param)), "_",
                                      dtype_name(std::get<1>(test.param)), "_",
                                      std::get<2>(test.param).name);
                         });

class ZeroSplitTest : public ZeroTest, public testing::WithParamInterface<Split> {};

TEST_P(ZeroSplitTest, ClippedRunsAreEqualToRounding) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  const Ending whole = train(*ranks, config(GetParam(), DType::kF32, 0));
  const Ending zero = train(*ranks, config(GetParam(), DType::kF32, 1));
  if (ranks->rank() != 0) return;
  for (size_t s = 0; s < whole.steps.size(); ++s) {
    const metrics::StepRecord& a = whole.steps[s].record;
    const metrics::StepRecord& b = zero.steps[s].record;
    EXPECT_GT(a.grad_norm, base_config().optim.clip) << "clipped";
    EXPECT_TRUE(close(b.grad_norm, a.grad_norm, kClippedTolerance)) << "step " << s + 1;
    EXPECT_TRUE(close(b.loss, a.loss, kClippedTolerance)) << "step " << s + 1;
  }
  EXPECT_TRUE(close(zero.weights, whole.weights, kClippedTolerance));
}

TEST_P(ZeroSplitTest, TheSameConfigTwiceGivesTheSameBits) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config(GetParam(), DType::kBF16, 1);
  c.train.grad_accum = 2;
  const Ending first = train(*ranks, c), second = train(*ranks, c);
  if (ranks->rank() != 0) return;
  for (size_t s = 0; s < first.steps.size(); ++s) {
    const metrics::StepRecord& a = first.steps[s].record;
    const metrics::StepRecord& b = second.steps[s].record;
    EXPECT_TRUE(same_bits(b.loss, a.loss)) << "step " << s + 1;
    EXPECT_TRUE(same_bits(b.grad_norm, a.grad_norm)) << "step " << s + 1;
  }
  EXPECT_TRUE(same_bits(second.weights, first.weights));
}

TEST_P(ZeroSplitTest, ASkippedStepLeavesWeightsAndStateAlone) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  std::vector<NamedValues> weights;
  for (const int64_t zero : {0, 1}) {
    config::Config c = unclipped(GetParam(), DType::kF32, zero);
    c.train.on_nonfinite = config::OnNonfinite::kSkip;
    TrainRun run(*ranks, c);
    train_steps(run, 1, 2);
    Tensor value = run.trainer.parameters().at("model.embed_tokens.weight").value;
    const Tensor before = value.clone(run.ctx);
    for (float& element : value.span<float>()) element = std::nanf("");
    const uint64_t poisoned = weights_checksum(run);
    EXPECT_TRUE(run.trainer.step(3).record.skipped);
    EXPECT_EQ(weights_checksum(run), poisoned);
    copy(before, value);
    // Its state unharmed, the run goes on, with bias corrections that do not count the skip.
    EXPECT_FALSE(run.trainer.step(4).record.skipped);
    weights.push_back(gather_weights(run));
  }
  if (ranks->rank() == 0) {
    EXPECT_TRUE(same_bits(weights[1], weights[0]));
  }
}

// ---- bytes --------------------------------------------------------------------------------------

TEST_P(ZeroSplitTest, OptimizerBytesAreThoseOfTheGroupOverItsSize) {
  const Split split = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TrainRun run(*ranks, config(split, dtype, 1));
    train_steps(run, 1, 1);
    // A f32 master is the weight itself; a bf16 model keeps one of 4 bytes.
    const double bytes_each = dtype == DType::kF32 ? 8.0 : 12.0;
    double expected = 0.0;
    for (const nn::Parameter& parameter : run.trainer.parameters().all()) {
      const bool dense = parameter.spec.sync == nn::SyncGroup::kDense;
      const int group = dense ? split.world() : split.dp;
      expected += bytes_each * static_cast<double>(parameter.value.numel()) / group;
    }
    const MemoryUse use = run.ctx.allocator()->use(Purpose::kOptimizer);
    EXPECT_TRUE(close(static_cast<double>(use.current_bytes), expected, kBytesTolerance))
        << dtype_name(dtype);
    EXPECT_EQ(use.peak_bytes, use.current_bytes) << "a step needs no more";
  }
}

// ---- replicas -----------------------------------------------------------------------------------

TEST_P(ZeroSplitTest, ADenseReplicaThatDriftedIsNamedBeforeTheUpdateHidesIt) {
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  auto ranks = first_ranks(GetParam().world());
  if (!ranks || ranks->size() == 1) return;
  // Elements at both ends: this rank's own share and those of others.
  for (const bool last_element : {false, true}) {
    TrainRun run(*ranks, unclipped(GetParam(), DType::kF32, 1));  // checks every step
    train_steps(run, 1, 2);
    const int last = ranks->size() - 1;
    Tensor value = run.trainer.parameters().at(name).value;
    if (ranks->rank() == last) {
      value.data<float>()[last_element ? value.numel() - 1 : 0] += 1e-6F;
    }
    std::string text;
    try {
      run.trainer.step(3);
    } catch (const CommError& error) {
      text = error.what();
    }
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find(str("world ranks 0 and ", last)), std::string::npos) << text;
  }
}

TEST_P(ZeroSplitTest, AnExpertReplicaThatDriftedIsNamed) {
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  const Split split = GetParam();
  auto ranks = first_ranks(split.world());
  // With ep > 1 the ranks of one EP index alone would throw, and the others wait for them.
  if (!ranks || split.dp == 1 || split.ep > 1) return;
  TrainRun run(*ranks, unclipped(split, DType::kF32, 1));
  train_steps(run, 1, 2);
  if (ranks->rank() == 1) run.trainer.parameters().at(name).value.data<float>()[7] += 1e-6F;
  try {
    run.trainer.step(3);
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find("world ranks 0 and 1"), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, ZeroSplitTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

}  // namespace
}  // namespace spillway::train
