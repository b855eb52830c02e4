// The selection bias over a run: moved by the load of the whole step, the same however the step is
// split, and by nothing else.
#include <cmath>

#include "spillway/data/batches.h"
#include "spillway/train/evaluation.h"
#include "spillway/train/replica_check.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// A power of two: a few updates are exact in f32.
constexpr double kRate = 0.03125;
constexpr int64_t kSteps = 4;

using Biases = std::vector<std::vector<float>>;

Biases biases_of(const TrainRun& run) {
  Biases all;
  for (const moe::SelectionBias& bias : run.trainer.decoder().selection_biases()) {
    const auto values = bias.values.span<float>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

bool any_nonzero(const Biases& biases) {
  for (const auto& layer : biases) {
    for (const float b : layer) {
      if (b != 0.0F) return true;
    }
  }
  return false;
}

class SelectionBiasTest : public TrainTest, public testing::WithParamInterface<Split> {
 protected:
  config::Config config() const { return config(GetParam()); }
  config::Config config(const Split& split) const {
    config::Config c = with_split(base_config(), split, 4 / split.world(), 2);
    c.moe.router.score = moe::ScoreFunction::kSigmoid;
    c.moe.router.bias_update_rate = kRate;
    return c;
  }
};

TEST_P(SelectionBiasTest, FollowsTheCountsOfEachStep) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun run(*ranks, config());
  Biases wanted(2, std::vector<float>(8, 0.0F));
  EXPECT_EQ(biases_of(run), wanted);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Trainer::StepResult result = run.trainer.step(step);
    if (ranks->rank() == 0) {
      // By hand from the metrics: groups and micro-batches added up.
      for (const auto& [layer, counts] : expert_tokens(result)) {
        ASSERT_EQ(sum(counts), 8 * 32 * 2) << "each assignment of the step once";
        EXPECT_EQ(result.agreement.expert_counts[static_cast<size_t>(layer)], counts);
        for (size_t e = 0; e < counts.size(); ++e) {
          const int64_t mean = 8 * 32 * 2 / 8;
          float& bias = wanted[static_cast<size_t>(layer)][e];
          if (counts[e] < mean) bias += static_cast<float>(kRate);
          if (counts[e] > mean) bias -= static_cast<float>(kRate);
        }
      }
      EXPECT_EQ(biases_of(run), wanted) << "step " << step;
    }
  }
  EXPECT_TRUE(any_nonzero(biases_of(run)));
  // Equal on all ranks: also compared by each step of this run.
  EXPECT_NO_THROW(check_replicas(run.trainer.parameters(), run.trainer.topology(),
                                 run.trainer.decoder().selection_biases()));
}

TEST_P(SelectionBiasTest, IsThatOfOneRank) {
  Biases one, many;
  if (auto ranks = first_ranks(1)) {
    TrainRun run(*ranks, config({1, 1}));
    train_steps(run, 1, kSteps);
    one = biases_of(run);
  }
  if (auto ranks = first_ranks(GetParam().world())) {
    TrainRun run(*ranks, config());
    train_steps(run, 1, kSteps);
    many = biases_of(run);
  }
  if (!is_root()) return;
  EXPECT_TRUE(any_nonzero(one));
  EXPECT_EQ(many, one);
}

TEST_P(SelectionBiasTest, DropsDoNotCount) {
  // Counts are demand before drops: with a tiny buffer as with a large one in the first step.
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun lossless(*ranks, config());
  config::Config c = config();
  c.capacity.policy = "factor";
  c.capacity.factor.factor = 0.5;
  c.capacity.on_overflow = capacity::OnOverflow::kDrop;
  TrainRun dropping(*ranks, c);
  const StepResults a = train_steps(lossless, 1, 1), b = train_steps(dropping, 1, 1);
  EXPECT_EQ(b[0].agreement.expert_counts[0], a[0].agreement.expert_counts[0]);
  EXPECT_EQ(biases_of(dropping)[0], biases_of(lossless)[0]);
  if (ranks->rank() == 0) {
    EXPECT_GT(total_dropped(b), 0);
    EXPECT_EQ(total_dropped(a), 0);
  }
}

TEST_P(SelectionBiasTest, StaysAsItIsInEvaluation) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.data.valid = c.data.train;
  c.train.eval_steps = 2;
  c.moe.router.aux_loss = moe::AuxLoss::kGlobal;
  TrainRun run(*ranks, c), without(*ranks, c);
  train_steps(run, 1, 2);
  train_steps(without, 1, 2);
  const Biases before = biases_of(run);
  ASSERT_TRUE(any_nonzero(before));
  const data::BatchSource source(data::TokenStream::open(c.data.valid, c.data.format),
                                 {.seq = c.data.seq,
                                  .layout = {.world = ranks->size(),
                                             .rank = ranks->rank(),
                                             .micro_batch = c.train.micro_batch,
                                             .grad_accum = c.train.grad_accum}});
  const EvalResult result = evaluate(run.ctx, *ranks, run.config, run.trainer.decoder(), source,
                                     run.trainer.capacity(), run.signals, 2);
  EXPECT_GT(result.loss, 0.0);
  EXPECT_EQ(biases_of(run), before);
  // What evaluation routed is not counted in the step that follows either.
  train_steps(run, 3, 1);
  train_steps(without, 3, 1);
  EXPECT_EQ(biases_of(run), biases_of(without));
}

TEST_P(SelectionBiasTest, StaysAsItIsWhenAnOverflowSkipsTheStep) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.capacity.policy = "factor";
  c.capacity.factor.factor = 0.5;
  c.capacity.on_overflow = capacity::OnOverflow::kSkip;
  TrainRun run(*ranks, c);
  const StepResults steps = train_steps(run, 1, 2);
  for (const Trainer::StepResult& step : steps) {
    EXPECT_TRUE(step.record.skipped);
    EXPECT_EQ(sum(step.agreement.expert_counts[0]), 8 * 32 * 2);
  }
  EXPECT_FALSE(any_nonzero(biases_of(run)));
}

TEST_P(SelectionBiasTest, StaysAsItIsWhenAStepIsNotFinite) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.train.on_nonfinite = config::OnNonfinite::kSkip;
  TrainRun run(*ranks, c);
  run.trainer.step(1);
  const Biases before = biases_of(run);
  ASSERT_TRUE(any_nonzero(before));
  Tensor value = run.trainer.parameters().at("model.layers.1.mlp.experts.down_proj").value;
  for (float& element : value.span<float>()) element = std::nanf("");
  EXPECT_TRUE(run.trainer.step(2).record.skipped);
  EXPECT_EQ(biases_of(run), before);
}

TEST_P(SelectionBiasTest, RecomputedLayersAreCountedOnce) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.moe.router.aux_loss = moe::AuxLoss::kSequence;
  c.moe.router.aux_coef = 0.1;
  TrainRun plain(*ranks, c);
  c.recompute.region = model::RecomputeRegion::kLayer;
  TrainRun again(*ranks, c);
  const StepResults a = train_steps(plain, 1, kSteps), b = train_steps(again, 1, kSteps);
  for (size_t s = 0; s < a.size(); ++s) {
    EXPECT_EQ(b[s].agreement.expert_counts, a[s].agreement.expert_counts);
    EXPECT_TRUE(same_bits(b[s].record.loss, a[s].record.loss));
  }
  EXPECT_EQ(biases_of(again), biases_of(plain));
  EXPECT_EQ(weights_checksum(again), weights_checksum(plain));
}

TEST_P(SelectionBiasTest, AStrongOneLeavesExpertsEmptyAndTrainingGoesOn) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  c.optim = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 0};
  TrainRun run(*ranks, c);
  // All experts of the first rank of an EP group of 4, and one more.
  for (moe::SelectionBias& bias : run.trainer.decoder().selection_biases()) {
    for (const int64_t e : {0, 1, 5}) bias.values.data<float>()[e] = -100.0F;
  }
  const StepResults steps = train_steps(run, 1, kSteps);
  for (const Trainer::StepResult& step : steps) {
    for (const std::vector<int64_t>& counts : step.agreement.expert_counts) {
      EXPECT_EQ(counts[0] + counts[1] + counts[5], 0);
      EXPECT_EQ(sum(counts), 8 * 32 * 2);
    }
  }
  EXPECT_LT(steps.back().record.loss, steps.front().record.loss);
}

TEST_P(SelectionBiasTest, EvensOutTheLoad) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config();
  // Weights stand still: only the bias moves the choice.
  c.optim.lr = c.optim.min_lr = 1e-9;
  // Well below the differences between scores, so that it does not swing to and fro.
  c.moe.router.bias_update_rate = 0.008;
  TrainRun run(*ranks, c);
  // Far from balance at first: experts 0 and 1 are favoured.
  for (moe::SelectionBias& bias : run.trainer.decoder().selection_biases()) {
    bias.values.data<float>()[0] = bias.values.data<float>()[1] = 0.1F;
  }
  const StepResults steps = train_steps(run, 1, 16);
  const auto busiest = [](const Trainer::StepResult& step) {
    const std::vector<int64_t>& counts = step.agreement.expert_counts[0];
    return *std::max_element(counts.begin(), counts.end());
  };
  constexpr int64_t kMean = 8 * 32 * 2 / 8;
  EXPECT_GT(busiest(steps.front()), 3 * kMean);
  EXPECT_LT(busiest(steps.back()), 2 * kMean);
}

TEST_P(SelectionBiasTest, AReplicaThatDiffersIsNamed) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks || ranks->size() == 1) return;
  TrainRun run(*ranks, config());
  const int last = ranks->size() - 1;
  if (ranks->rank() == last) {
    Tensor values = run.trainer.decoder().selection_biases()[1].values;
    values.data<float>()[7] += 1e-6F;
  }
  std::string text;
  try {
    // A step cannot put it right: the same amount is added everywhere.
    train_steps(run, 1, 1);
  } catch (const CommError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("model.layers.1.mlp.gate.e_score_correction_bias"), std::string::npos);
  EXPECT_NE(text.find(str("world ranks 0 and ", last)), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Splits, SelectionBiasTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

}  // namespace
}  // namespace spillway::train
