// MoE layers one after the other, as a decoder has them, with the counters read around every layer
// and micro-batch: what saving `dispatch` avoids, and that saved, recomputed and plain runs agree.
#include <functional>

#include "distributed/moe/stack.h"
#include "spillway/ops/basic.h"
#include "spillway/ops/rms_norm.h"
#include "support/kernel_test.h"

namespace spillway::moe::test {
namespace {

enum class Region { kNone, kMoe, kLayer };

struct Mode {
  const char* name;
  Region region;
  bool save_dispatch;
  bool fused;
  /// Both micro-batches go forward before the first goes backward.
  bool overlap;
  bool again() const { return region != Region::kNone && !save_dispatch; }
};

constexpr Mode kPlain{"plain", Region::kNone, false, false, false};
constexpr Mode kModes[] = {
    {"plain_fused", Region::kNone, false, true, true},
    {"layer_saved", Region::kLayer, true, false, true},
    {"layer_saved_fused", Region::kLayer, true, true, false},
    {"layer_again", Region::kLayer, false, false, false},
    {"layer_again_fused", Region::kLayer, false, true, true},
    {"moe_saved", Region::kMoe, true, false, false},
    {"moe_again", Region::kMoe, false, false, true},
};

constexpr double kNormEps = 1e-6;

/// What one micro-batch did on this rank.
struct Outcome {
  double loss = 0.0;
  Gradients gradients;
  std::vector<double> dx;
  std::vector<LayerRecord> records;
  std::vector<Tensor> choices;
  std::vector<CounterSet> forward, backward;  // a layer
};

class Loop {
 public:
  explicit Loop(const Setting& setting) : base_(setting) {
    for (int64_t i = 0; i < setting.layers; ++i) {
      const std::string prefix = str("model.layers.", i, ".");
      norms_.push_back(base_.store.at(prefix + "post_attention_layernorm.weight").variable);
      layers_.emplace_back(base_.ctx, base_.config.moe, i, prefix + "mlp.", base_.store);
      apply_routing(setting, layers_.back().selection_bias());
    }
  }
  Base& base() { return base_; }

  /// Two micro-batches with different data through the same layers and session; memory that the
  /// first leaves is written over before the second, and before each backward.
  std::vector<Outcome> run(const Mode& mode) {
    std::vector<MicroBatch> batches;
    for (int64_t m = 0; m < 2; ++m) batches.push_back(start(m));
    base_.ctx.counters().reset();
    std::vector<Outcome> outcomes;
    if (mode.overlap) {
      for (MicroBatch& batch : batches) forward(mode, batch);
    }
    for (MicroBatch& batch : batches) {
      if (!mode.overlap) forward(mode, batch);
      base_.churn();
      outcomes.push_back(backward(batch));
      batch = MicroBatch{};
      base_.churn();
    }
    return outcomes;
  }

 private:
  struct MicroBatch {
    int64_t index = 0;
    std::unique_ptr<autograd::Tape> tape;
    Variable x, y;
    Tensor seed;
    Outcome outcome;
  };

  MicroBatch start(int64_t m) {
    MicroBatch batch{.index = m, .tape = std::make_unique<autograd::Tape>(base_.ctx)};
    const auto stream = static_cast<uint64_t>(100 * m + base_.world->rank());
    const Tensor rows = spillway::testing::random_tensor(base_.ctx, {kTokens, kHidden},
                                                         base_.setting.dtype, stream);
    const DType sums = accumulator_dtype(base_.setting.dtype);
    batch.x = Variable::leaf(str("x", m), rows, Tensor::zeros(base_.ctx, {kTokens, kHidden}, sums));
    batch.seed = spillway::testing::random_tensor(base_.ctx, {kTokens, kHidden},
                                                  base_.setting.dtype, 1000 + stream);
    return batch;
  }

  CounterSet take_counters() {
    const CounterSet counted = base_.ctx.counters().total();
    base_.ctx.counters().reset();
    return counted;
  }

  /// Identity; what was counted since the last one of them is told when backward comes by.
  Variable probe(autograd::Tape& tape, const Variable& h, std::function<void(CounterSet)> tell) {
    return tape.record("probe", h.value(), {h}, [this, tell](autograd::Backward& b) {
      tell(take_counters());
      b.give(0, b.take_grad());
    });
  }

  Variable layer(const Mode& mode, MicroBatch& batch, size_t index, const Variable& h) {
    autograd::Tape& tape = *batch.tape;
    const MoeCall call{.session = base_.session,
                       .step = 7,
                       .micro_batch = batch.index,
                       .fused = mode.fused,
                       .cell_scale = 0.5,
                       .token_scale = 1.0 / kTokens,
                       .seq = kSeq,
                       .records = &batch.outcome.records,
                       .choices = &batch.outcome.choices};
    // By value: the body runs once more in backward. The records live as long as the tape.
    const auto routed = [this, call, index, &tape](const Variable& in) {
      const Variable normed = ops::rms_norm(tape, in, norms_[index], kNormEps);
      return layers_[index](tape, normed, call).out;
    };
    std::vector<std::string> save;
    if (mode.save_dispatch) save.emplace_back("dispatch");
    switch (mode.region) {
      case Region::kNone:
        return ops::add(tape, h, routed(h));
      case Region::kMoe:
        return ops::add(
            tape, h,
            tape.region({.save = save}, h,
                        [routed](const Variable& in) { return std::vector<Variable>{routed(in)}; })
                .front());
      default:
        return tape
            .region({.save = save}, h,
                    [routed, &tape](const Variable& in) {
                      return std::vector<Variable>{ops::add(tape, in, routed(in))};
                    })
            .front();
    }
  }

  void forward(const Mode& mode, MicroBatch& batch) {
    Outcome& outcome = batch.outcome;
    outcome.backward.resize(layers_.size());
    Variable h = probe(*batch.tape, batch.x,
                       [&outcome](CounterSet counted) { outcome.backward.front() = counted; });
    take_counters();
    for (size_t i = 0; i < layers_.size(); ++i) {
      h = layer(mode, batch, i, h);
      outcome.forward.push_back(take_counters());
      // The probe behind layer i ends what layer i + 1 did.
      h = probe(*batch.tape, h, [&outcome, i](CounterSet counted) {
        if (i + 1 < outcome.backward.size()) outcome.backward[i + 1] = counted;
      });
    }
    for (int64_t i = 0; i < h.value().numel(); ++i) {
      outcome.loss +=
          spillway::testing::element(h.value(), i) * spillway::testing::element(batch.seed, i);
    }
    batch.y = h;
  }

  Outcome backward(MicroBatch& batch) {
    base_.store.zero_gradients(base_.ctx);
    base_.ctx.counters().reset();
    batch.tape->backward(batch.y, batch.seed);
    batch.outcome.gradients = gradients_of(base_.store);
    batch.outcome.dx = spillway::testing::to_doubles(batch.x.grad());
    batch.outcome.gradients["x"] = batch.outcome.dx;
    return std::move(batch.outcome);
  }

  Base base_;
  std::vector<Variable> norms_;
  std::vector<MoeLayer> layers_;
};

int64_t dropped_in(const LayerRecord& record) { return dropped({record}); }

/// The table of the contract for one layer and micro-batch.
void expect_counters(const Setting& setting, const Mode& mode, const LayerRecord& record,
                     const CounterSet& forward, const CounterSet& backward) {
  const int64_t again = mode.again() ? 1 : 0;
  EXPECT_EQ(forward.prepares, mode.fused ? 0 : 1);
  EXPECT_EQ(forward.fused_prepares, mode.fused ? 1 : 0);
  EXPECT_EQ(forward.forward_dispatches, 1);
  EXPECT_EQ(forward.combines, 1);
  EXPECT_EQ(forward.backward_transports, 0);
  EXPECT_EQ(backward.prepares, mode.fused ? 0 : again);
  EXPECT_EQ(backward.fused_prepares, mode.fused ? again : 0);
  EXPECT_EQ(backward.forward_dispatches, again);
  EXPECT_EQ(backward.combines, 0) << "nothing in a region reads the combine's result";
  EXPECT_EQ(backward.backward_transports, 2);
  // A second look at the gates, where an overflow drops by them.
  const bool by_score = setting.order == plan::DropOrder::kScore && dropped_in(record) > 0;
  const int64_t syncs = setting.ep == 1 ? 0 : by_score ? 2 : 1;
  EXPECT_EQ(forward.host_syncs, syncs);
  EXPECT_EQ(backward.host_syncs, again * syncs);
}

/// Of one layer and micro-batch, all ranks together: rows and f32 gates there, rows back; in
/// backward the other way round.
void expect_bytes(const Base& base, const Mode& mode, const CounterSet& forward,
                  const CounterSet& backward) {
  const int64_t row = kHidden * dtype_bytes(base.setting.dtype), gate = 4;
  const int64_t there = base.sum_over_ranks(forward.all_to_all_bytes);
  const int64_t back = base.sum_over_ranks(backward.all_to_all_bytes);
  const int64_t rows = there / (2 * row + gate);
  EXPECT_EQ(there, rows * (2 * row + gate));
  EXPECT_EQ(back, there + (mode.again() ? rows * (row + gate) : 0));
  EXPECT_EQ(rows > 0, base.setting.ep > 1);
}

void expect_table(Loop& loop, const Mode& mode, const std::vector<Outcome>& outcomes) {
  const Setting& setting = loop.base().setting;
  for (const Outcome& outcome : outcomes) {
    const auto layers = static_cast<size_t>(setting.layers);
    ASSERT_EQ(outcome.records.size(), layers) << "a record a layer, none for what is repeated";
    ASSERT_EQ(outcome.forward.size(), layers);
    for (size_t i = 0; i < layers; ++i) {
      SCOPED_TRACE(str("layer ", i, " micro-batch ", outcome.records[i].micro_batch));
      expect_counters(setting, mode, outcome.records[i], outcome.forward[i], outcome.backward[i]);
      expect_bytes(loop.base(), mode, outcome.forward[i], outcome.backward[i]);
    }
  }
}

struct Case {
  const char* name;
  DType dtype;
  int64_t alignment;
  Routing routing;
  double of_balanced;  // 0: lossless
  plan::DropOrder order = plan::DropOrder::kTail;
  int64_t layers = 3;
  bool renormalize = false;
};

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
using Order = plan::DropOrder;

constexpr Case kCases[] = {
    {"f32_a1_lossless", kF32, 1, Routing::kLearned, 0.0},
    {"bf16_a8_one_layer", kBF16, 8, Routing::kLearned, 0.0, Order::kTail, 1},
    {"f32_a8_balanced", kF32, 8, Routing::kBalanced, 0.0},
    {"bf16_a8_balanced_drop", kBF16, 8, Routing::kBalanced, 0.5},
    {"f32_a1_empty", kF32, 1, Routing::kEmptyExperts, 0.0},
    {"bf16_a8_empty_drop", kBF16, 8, Routing::kEmptyExperts, 0.8},
    {"f32_a128_empty_one_layer", kF32, 128, Routing::kEmptyExperts, 0.0, Order::kTail, 1},
    {"f32_a1_tail", kF32, 1, Routing::kLearned, 0.6},
    {"f32_a8_fair", kF32, 8, Routing::kLearned, 0.6, Order::kFair},
    {"f32_a128_random", kF32, 128, Routing::kLearned, 0.6, Order::kRandom},
    {"f32_a1_score", kF32, 1, Routing::kLearned, 0.6, Order::kScore},
    {"f32_a8_tail_one_layer", kF32, 8, Routing::kLearned, 0.6, Order::kTail, 1},
    {"bf16_a128_tail", kBF16, 128, Routing::kLearned, 0.6},
    {"bf16_a1_fair", kBF16, 1, Routing::kLearned, 0.6, Order::kFair},
    {"bf16_a8_random", kBF16, 8, Routing::kLearned, 0.6, Order::kRandom},
    {"bf16_a128_score", kBF16, 128, Routing::kLearned, 0.6, Order::kScore},
    {"bf16_a8_score_one_layer", kBF16, 8, Routing::kLearned, 0.6, Order::kScore, 1},
    {"f32_a8_score_empty", kF32, 8, Routing::kEmptyExperts, 0.8, Order::kScore},
    {"f32_a1_renormalised", kF32, 1, Routing::kLearned, 0.6, Order::kScore, 3, true},
    {"bf16_a8_renormalised", kBF16, 8, Routing::kLearned, 0.6, Order::kFair, 3, true},
};

class LayerLoopTest : public ::testing::TestWithParam<std::tuple<int, Case>> {
 protected:
  static Setting setting() {
    const auto& [ep, c] = GetParam();
    return {.ep = ep,
            .layers = c.layers,
            .dtype = c.dtype,
            .alignment = c.alignment,
            .routing = c.routing,
            .of_balanced = c.of_balanced,
            .order = c.order,
            .renormalize = c.renormalize};
  }
};

TEST_P(LayerLoopTest, SavedAndRecomputedRunsAreThePlainOne) {
  Loop loop(setting());
  const std::vector<Outcome> plain = loop.run(kPlain);
  expect_table(loop, kPlain, plain);
  for (const Outcome& outcome : plain) {
    expect_routing(setting(), outcome.records);
    const int64_t drops = loop.base().sum_over_ranks(dropped(outcome.records));
    EXPECT_EQ(drops > 0, setting().of_balanced > 0.0) << "the case is not what it says";
    EXPECT_GT(largest(outcome.gradients), 0.0);
  }
  EXPECT_FALSE(same(plain[0].choices, plain[1].choices) && setting().routing == Routing::kLearned)
      << "two batches that differ";
  const Tolerance tolerance = tolerance_of(setting().dtype);
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(mode.name);
    const std::vector<Outcome> outcomes = loop.run(mode);
    expect_table(loop, mode, outcomes);
    for (size_t m = 0; m < plain.size(); ++m) {
      SCOPED_TRACE(str("micro-batch ", m));
      EXPECT_TRUE(same(outcomes[m].records, plain[m].records));
      EXPECT_TRUE(same(outcomes[m].choices, plain[m].choices));
      EXPECT_TRUE(close(outcomes[m].loss, plain[m].loss, tolerance));
      EXPECT_TRUE(close(outcomes[m].gradients, plain[m].gradients, tolerance));
    }
    EXPECT_EQ(loop.base().session.live_handles(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, LayerLoopTest, ::testing::ValuesIn(grid<Case>(kCases)),
                         [](const auto& test) {
                           return ep_name(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

/// What the comparisons rest on: other drops are seen.
TEST(LayerLoop, AnotherCapacityGivesOtherGradients) {
  const int ep = all_ep().back();
  Loop tight({.ep = ep, .of_balanced = 0.6}), tighter({.ep = ep, .of_balanced = 0.5});
  const std::vector<Outcome> a = tight.run(kPlain), b = tighter.run(kPlain);
  const Tolerance loose{1e-2, 1e-2};
  EXPECT_FALSE(close(b[0].gradients, a[0].gradients, loose));
  EXPECT_FALSE(same(b[0].records, a[0].records));
}

}  // namespace
}  // namespace spillway::moe::test
