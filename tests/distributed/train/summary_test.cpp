// The closing words of a run, the line on the console, operations of a step.
#include "spillway/train/run_summary.h"

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

// ---- flops --------------------------------------------------------------------------------------

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
