// The closing words of a run, the line on the console, the memory table.
#include "spillway/train/run_summary.h"

#include "spillway/train/memory_estimate.h"
#include "spillway/train/model_flops.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kWorstCase = 1000;
constexpr int64_t kBalanced = 400;

metrics::StepRecord step_record(int64_t step, double loss) {
  return {.step = step,
          .loss = loss,
          .tokens = 500,
          .step_ms = 250.0,
          .mem_peak_bytes = step * 1048576};
}

metrics::EpStepRecord layer_record(int64_t step, int64_t demand, int64_t dropped,
                                   int64_t capacity_end, int64_t grow_events) {
  return {.step = step,
          .layer = 1,
          .max_total_recv_tokens = demand,
          .dropped_assignments = dropped,
          .capacity = 300,
          .capacity_end = capacity_end,
          .grow_events = grow_events};
}

/// Eight steps, one layer: 10 drops in step 1, 3 in step 7; capacity 1000, and 500 from step 5 on.
RunSummary eight_steps() {
  RunSummary summary(8, kWorstCase, kBalanced);
  for (int64_t s = 1; s <= 8; ++s) {
    metrics::StepRecord step = step_record(s, 6.0 - 0.5 * static_cast<double>(s));
    step.skipped = s == 2;
    const int64_t drops = s == 1 ? 10 : s == 7 ? 3 : 0;
    summary.add_step(step, {layer_record(s, 600 + s, drops, s < 5 ? 1000 : 500, s == 8 ? 1 : 0)},
                     1000);
  }
  summary.add_reconfigure({.kind = metrics::ReconfigureKind::kPolicy,
                           .drain_ms = 1.0,
                           .finalize_ms = 2.0,
                           .init_ms = 3.0,
                           .alloc_ms = 4.5});
  summary.add_reconfigure({.kind = metrics::ReconfigureKind::kGrow});
  return summary;
}

TEST(RunSummaryTest, CountsDropsAndTheLastQuarter) {
  const RunSummary summary = eight_steps();
  EXPECT_EQ(summary.total_dropped(), 13);
  EXPECT_EQ(summary.last_quarter_dropped(), 3);
  EXPECT_DOUBLE_EQ(summary.last_quarter_capacity_share(), 0.5);
  EXPECT_DOUBLE_EQ(summary.seconds_a_step(), 0.25);
}

struct TextCase {
  const char* name;
  const char* text;
};

class SummaryTextTest : public testing::TestWithParam<TextCase> {};

TEST_P(SummaryTextTest, HasTheNumbers) {
  RunSummary summary = eight_steps();
  summary.set_eval({.step = 8, .loss = 1.23456, .tokens = 777});
  const std::string text = summary.text({"a baseline of 2.5"});
  EXPECT_NE(text.find(GetParam().text), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(
    Lines, SummaryTextTest,
    testing::Values(
        TextCase{"story", "Trained 8 steps on 4000 tokens in 2.0 s (2000 tokens/s)"},
        TextCase{"loss", "loss 5.500 -> 2.000 nats a token"},
        TextCase{"skipped", "Skipped steps: 1."},
        TextCase{"held_out", "Held-out loss 1.2346 nats a token over 777 tokens"},
        TextCase{"baseline", "a baseline of 2.5"},
        TextCase{"sizes",
                 "worst case is 1000 slots a rank and layer, perfect balance would need 400"},
        TextCase{"demand", "Highest demand of any rank, layer and micro-batch: 608 slots (1.52 x"},
        TextCase{"share", "75.00 % over the run, 50.00 % over the last quarter"},
        TextCase{"drops", "Dropped assignments: 13 of 8000 (0.16 %), 3 in the last quarter"},
        TextCase{"grow", "Buffers grew 1 times within a step (1 in the last quarter)"},
        TextCase{"policy", "the policy changed a capacity 1 times, at a cost of 10.5 ms"},
        TextCase{"memory", "Peak memory of a rank: 8.0 MiB"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(RunSummaryTest, DenseRunSaysNothingOfBuffers) {
  RunSummary summary(1, 0, 0);
  summary.add_step(step_record(1, 5.0), {}, 0);
  const std::string text = summary.text({});
  EXPECT_EQ(text.find("Receive buffers"), std::string::npos) << text;
  EXPECT_EQ(text.find("Held-out"), std::string::npos) << text;
  EXPECT_EQ(summary.last_quarter_capacity_share(), 0.0);
}

TEST(ProgressLineTest, HasStepLossDemandAndTimeLeft) {
  metrics::StepRecord step = step_record(30, 2.34567);
  step.tokens_per_s = 1234.9;
  EXPECT_EQ(progress_line(step, 300, 2, 0.876, 5, 125.4),
            "step 30/300  loss 2.3457  1234 tokens/s  demand/capacity 0.88 (layer 2)  dropped 5"
            "  ETA 2:05");
  step.skipped = true;
  EXPECT_EQ(progress_line(step, 300, -1, 0.0, 0, 59.6),
            "step 30/300  loss 2.3457  1234 tokens/s  SKIPPED  ETA 1:00");
}

// ---- memory -------------------------------------------------------------------------------------

// The flat tensors of gradients and moments pad each parameter to 16 elements.
constexpr int64_t kMaxPaddingElements = 15;

class MemoryTest : public TrainTest,
                   public testing::WithParamInterface<std::tuple<Split, DType>> {};

TEST_P(MemoryTest, EstimateIsWhatIsAllocated) {
  const auto& [split, dtype] = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  config::Config config = with_split(base_config(), split, 2, 1);
  config.run.dtype = dtype;
  config.model.first_dense_layers = 1;
  config.moe.shared_experts = 1;
  const MemoryEstimate estimate = estimate_memory(config);
  TrainRun run(*ranks, config);
  const Allocator& memory = *run.ctx.allocator();
  const auto count = static_cast<int64_t>(run.trainer.parameters().all().size());
  const int64_t slack = count * kMaxPaddingElements * 4;
  EXPECT_GE(memory.use(Purpose::kWeights).current_bytes, estimate.weights);
  EXPECT_LE(memory.use(Purpose::kWeights).current_bytes, estimate.weights + slack);
  EXPECT_GE(memory.use(Purpose::kGradients).current_bytes, estimate.gradients);
  EXPECT_LE(memory.use(Purpose::kGradients).current_bytes, estimate.gradients + slack);
  EXPECT_GE(memory.use(Purpose::kOptimizer).current_bytes, estimate.optimizer);
  EXPECT_LE(memory.use(Purpose::kOptimizer).current_bytes, estimate.optimizer + 3 * slack);
  // A peak of one step is seen by the step's record.
  const Trainer::StepResult step = run.trainer.step(1);
  EXPECT_GT(step.record.mem_peak_bytes, estimate.weights + estimate.gradients + estimate.optimizer);
}

INSTANTIATE_TEST_SUITE_P(Splits, MemoryTest,
                         testing::Combine(testing::ValuesIn(all_splits()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return split_name(std::get<0>(test.param)) + "_" +
                                  std::string(dtype_name(std::get<1>(test.param)));
                         });

TEST_F(TrainTest, MemoryEstimateFollowsCapacityAndWorstCase) {
  config::Config config = with_split(base_config(), {2, 1}, 2, 1);
  const int64_t row = capacity_sized_row_bytes(config);
  EXPECT_EQ(row, (2 * 32 + 3 * 32) * 4 + 4);
  const capacity::LayerFacts facts = config::layer_facts(config);
  MemoryEstimate estimate = estimate_memory(config);
  EXPECT_EQ(estimate.receive_chosen, 2 * row * facts.worst_case_slots);
  EXPECT_EQ(estimate.receive_worst_case, estimate.receive_chosen);
  config.capacity.policy = "factor";
  config.capacity.factor.factor = 1.0;
  config.capacity.on_overflow = capacity::OnOverflow::kDrop;
  estimate = estimate_memory(config);
  EXPECT_EQ(estimate.receive_chosen, 2 * row * facts.balanced_slots);
  EXPECT_LT(estimate.receive_chosen, estimate.receive_worst_case);
}

TEST_F(TrainTest, MemoryEstimateOfARecomputedLayerHoldsTheRowsOfOne) {
  config::Config config = with_split(base_config(), {2, 1}, 2, 1);
  config.recompute.region = model::RecomputeRegion::kLayer;
  const int64_t row = capacity_sized_row_bytes(config);
  const int64_t slots = config::layer_facts(config).worst_case_slots;
  EXPECT_EQ(estimate_memory(config).receive_chosen, row * slots);
  config.recompute.save = {"router", "dispatch"};
  EXPECT_EQ(estimate_memory(config).receive_chosen, (row + 32 * 4 + 4) * slots);
  config.recompute.save = {"expert_up", "expert_act"};
  EXPECT_EQ(estimate_memory(config).receive_chosen, (row + 3 * 32 * 4) * slots);
}

TEST_F(TrainTest, MemoryDescriptionNamesWorldAndParameters) {
  config::Config config = with_split(base_config(), {2, 1}, 2, 1);
  const std::string text = describe_model(config, 4);
  EXPECT_EQ(text.find("world 4 = ep 2 x dp 2\n"), 0U) << text;
  const model::ParameterCounts counts = model::count_parameters(config::decoder_config(config));
  EXPECT_NE(text.find(str("parameters: ", counts.total, " total, ", counts.active, " active")),
            std::string::npos)
      << text;
  for (const char* row :
       {"weights ", "gradients ", "optimizer ", "activations ", "first step ", "worst case "}) {
    EXPECT_NE(text.find(row), std::string::npos) << row;
  }
}

TEST_F(TrainTest, FlopsCountActiveParametersAndCausalAttention) {
  config::Config config = with_split(base_config(), {1, 1}, 2, 3);
  const int64_t hidden = 32, head_dim = 8, seq = 32;
  const int64_t attention = hidden * (4 + 2 + 2) * head_dim + 4 * head_dim * hidden;
  const int64_t norms = 2 * hidden;
  const int64_t moe = 8 * hidden + 2 * 3 * hidden * 32;  // router, 2 of 8 experts of width 32
  const int64_t output = 258 * hidden + hidden;
  const int64_t multiplied = 2 * (attention + norms + moe) + output;
  const double tokens = 2.0 * 2 * 3 * seq;
  const double expected = 6.0 * tokens * static_cast<double>(multiplied + 2 * 4 * head_dim * seq);
  EXPECT_DOUBLE_EQ(step_flops(config, 2), expected);
  config.model.tie_embeddings = true;
  EXPECT_DOUBLE_EQ(step_flops(config, 2), expected) << "a tied embedding is the output's matrix";
}

}  // namespace
}  // namespace spillway::train
