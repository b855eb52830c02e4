// A whole decoder with real drops: runs that keep everything, that keep the dispatch, and that
// compute it again agree, for every drop order, and pay what the contract's table says.
#include "distributed/moe/stack.h"
#include "support/kernel_test.h"

namespace spillway::moe::test {
namespace {

using model::RecomputeRegion;
using Order = plan::DropOrder;

struct Mode {
  const char* name;
  RecomputeRegion region;
  bool save_dispatch;
  bool fused;
  bool again() const { return region != RecomputeRegion::kNone && !save_dispatch; }
};

constexpr Mode kPlain{"plain", RecomputeRegion::kNone, false, false};
constexpr Mode kModes[] = {
    {"layer_saved", RecomputeRegion::kLayer, true, false},
    {"layer_saved_fused", RecomputeRegion::kLayer, true, true},
    {"layer_again", RecomputeRegion::kLayer, false, false},
    {"layer_again_fused", RecomputeRegion::kLayer, false, true},
    {"moe_saved", RecomputeRegion::kMoe, true, false},
    {"moe_again", RecomputeRegion::kMoe, false, false},
};

constexpr int64_t kMicroBatches = 2;

struct Outcome {
  double loss = 0.0;
  Gradients gradients;
  std::vector<LayerRecord> records;
  std::vector<Tensor> choices;
  std::vector<CounterSet> total, backward;  // a micro-batch
};

/// One step of two micro-batches through a decoder made for the mode.
Outcome train_once(const Setting& setting, const Mode& mode) {
  model::RecomputeConfig recompute{.region = mode.region};
  if (mode.save_dispatch) recompute.save = {"dispatch"};
  Base base(setting, recompute);
  const model::Decoder decoder(base.ctx, base.config, base.store);
  for (const SelectionBias& bias : decoder.selection_biases()) apply_routing(setting, bias.values);
  base.store.zero_gradients(base.ctx);
  Outcome outcome;
  autograd::Tape tape(base.ctx);
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    base.ctx.counters().reset();
    const auto seed = static_cast<uint64_t>(2 * m);
    const MoeCall call{.session = base.session,
                       .step = 3,
                       .micro_batch = m,
                       .fused = mode.fused,
                       .cell_scale = 1.0 / kMicroBatches,
                       .token_scale = 1.0 / (kMicroBatches * kTokens),
                       .records = &outcome.records,
                       .choices = &outcome.choices};
    const model::ForwardResult result =
        decoder.forward(tape, random_tokens(base, seed), random_tokens(base, seed + 1), call);
    base.churn();
    tape.backward(result.objective);
    base.churn();
    outcome.loss += result.loss_sum;
    outcome.total.push_back(base.ctx.counters().total());
    outcome.backward.push_back(base.ctx.counters().backward());
  }
  outcome.gradients = gradients_of(base.store);
  EXPECT_EQ(base.session.live_handles(), 0);
  return outcome;
}

/// Layers of a micro-batch in which this EP group looked at gates a second time.
int64_t layers_dropping_by_score(const Setting& setting, const Outcome& outcome, int64_t m) {
  int64_t layers = 0;
  for (const LayerRecord& record : outcome.records) {
    if (record.micro_batch == m && dropped({record}) > 0) ++layers;
  }
  return setting.order == Order::kScore ? layers : 0;
}

void expect_counters(const Setting& setting, const Mode& mode, const Outcome& outcome) {
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    SCOPED_TRACE(str("micro-batch ", m));
    const CounterSet& total = outcome.total[static_cast<size_t>(m)];
    const CounterSet& backward = outcome.backward[static_cast<size_t>(m)];
    const int64_t layers = setting.layers, again = mode.again() ? layers : 0;
    EXPECT_EQ(total.prepares, mode.fused ? 0 : layers + again);
    EXPECT_EQ(backward.prepares, mode.fused ? 0 : again);
    EXPECT_EQ(total.fused_prepares, mode.fused ? layers + again : 0);
    EXPECT_EQ(backward.fused_prepares, mode.fused ? again : 0);
    EXPECT_EQ(total.forward_dispatches, layers + again);
    EXPECT_EQ(backward.forward_dispatches, again);
    EXPECT_EQ(total.combines, layers);
    EXPECT_EQ(backward.combines, 0);
    EXPECT_EQ(total.backward_transports, 2 * layers);
    EXPECT_EQ(backward.backward_transports, 2 * layers);
    const int64_t syncs =
        setting.ep == 1 ? 0 : layers + layers_dropping_by_score(setting, outcome, m);
    EXPECT_EQ(total.host_syncs, mode.again() ? 2 * syncs : syncs);
    EXPECT_EQ(backward.host_syncs, mode.again() ? syncs : 0);
  }
}

struct Case {
  const char* name;
  DType dtype;
  int64_t alignment;
  Routing routing;
  Order order;
  bool renormalize = false;
};

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

constexpr Case kCases[] = {
    {"f32_a1_tail", kF32, 1, Routing::kLearned, Order::kTail},
    {"f32_a8_fair", kF32, 8, Routing::kLearned, Order::kFair},
    {"f32_a128_random", kF32, 128, Routing::kLearned, Order::kRandom},
    {"f32_a8_score", kF32, 8, Routing::kLearned, Order::kScore},
    {"f32_a1_balanced", kF32, 1, Routing::kBalanced, Order::kRandom},
    {"f32_a8_empty", kF32, 8, Routing::kEmptyExperts, Order::kTail},
    {"bf16_a128_tail", kBF16, 128, Routing::kLearned, Order::kTail},
    {"bf16_a1_fair", kBF16, 1, Routing::kLearned, Order::kFair},
    {"bf16_a8_random", kBF16, 8, Routing::kLearned, Order::kRandom},
    {"bf16_a1_score", kBF16, 1, Routing::kLearned, Order::kScore},
    {"bf16_a8_empty", kBF16, 8, Routing::kEmptyExperts, Order::kScore},
    {"bf16_a1_renormalised", kBF16, 1, Routing::kLearned, Order::kScore, true},
};

class OverflowBackwardTest : public ::testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(OverflowBackwardTest, PlainSavedAndRecomputedAgree) {
  const auto& [ep, c] = GetParam();
  const Setting setting{.ep = ep,
                        .dtype = c.dtype,
                        .alignment = c.alignment,
                        .routing = c.routing,
                        .of_balanced = 0.7,
                        .order = c.order,
                        .renormalize = c.renormalize};
  const Outcome plain = train_once(setting, kPlain);
  // In each layer and micro-batch some rank of the world overflows; not in every EP group.
  Base base(setting);
  for (const LayerRecord& record : plain.records) {
    EXPECT_GT(base.sum_over_ranks(dropped({record})), 0) << "layer " << record.moe_layer;
  }
  expect_routing(setting, plain.records);
  EXPECT_GT(largest(plain.gradients), 0.0);
  expect_counters(setting, kPlain, plain);
  const Tolerance tolerance = tolerance_of(setting.dtype);
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(mode.name);
    const Outcome outcome = train_once(setting, mode);
    EXPECT_TRUE(same(outcome.records, plain.records));
    EXPECT_TRUE(same(outcome.choices, plain.choices));
    EXPECT_TRUE(close(outcome.loss, plain.loss, tolerance));
    EXPECT_TRUE(close(outcome.gradients, plain.gradients, tolerance));
    expect_counters(setting, mode, outcome);
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, OverflowBackwardTest, ::testing::ValuesIn(grid<Case>(kCases)),
                         [](const auto& test) {
                           return ep_name(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace spillway::moe::test
