// A MoE layer that is computed again in backward: bits, counters, records.
#include <gtest/gtest.h>

#include "moe_fixture.h"

namespace spillway::moe {
namespace {

struct RegionCase {
  const char* label;
  std::vector<std::string> save;
  int64_t capacity = 0;
  bool fused = false;
};

struct RunResult {
  double loss = 0.0;
  std::vector<Tensor> gradients;
  CounterSet total, backward, avoided;
  size_t records = 0;
};

RunResult run(const RegionCase& c, bool with_region) {
  LayerOptions options;
  options.config.shared_experts = 1;
  options.config.alignment = 2;
  options.capacity = c.capacity;
  TestLayer test(options);
  MoeCall call = test.call();
  call.fused = c.fused;
  Tape tape(test.ctx);
  const auto body = [&](const Variable& x) {
    const MoeOutput out = test.layer(tape, x, call);
    return std::vector{ops::add(tape, x, out.out), out.aux_loss, out.z_loss};
  };
  // Two batches through one layer: a stale handle would show.
  std::vector<Variable> terms;
  Variable x = test.x;
  for (int pass = 0; pass < 2; ++pass) {
    const auto y = with_region ? tape.region({.save = c.save}, x, body) : body(x);
    x = y.front();
    terms.insert(terms.end(), y.begin() + 1, y.end());
  }
  terms.push_back(spillway::testing::random_projection(tape, x));
  const Variable loss =
      ops::weighted_sum(tape, terms, std::vector<double>{0.3, 0.2, 0.3, 0.2, 1.0});
  tape.backward(loss);
  RunResult result{.loss = ops::scalar_value(loss.value())};
  for (const nn::Parameter& parameter : test.store.all()) {
    result.gradients.push_back(parameter.gradient.clone(test.ctx));
  }
  result.total = test.ctx.counters().total();
  result.backward = test.ctx.counters().backward();
  result.avoided = test.ctx.counters().avoided();
  result.records = test.records.size();
  if (c.capacity > 0) {
    EXPECT_GT(test.records.front().ledger.dropped_assignments[0], 0) << "nothing was dropped";
  }
  return result;
}

class MoeRegion : public ::testing::TestWithParam<RegionCase> {
 protected:
  static bool dispatch_saved() {
    const auto& save = GetParam().save;
    return std::find(save.begin(), save.end(), "dispatch") != save.end();
  }
};

TEST_P(MoeRegion, GivesTheBitsOfAPlainRun) {
  const RunResult plain = run(GetParam(), false);
  const RunResult again = run(GetParam(), true);
  EXPECT_EQ(plain.loss, again.loss);
  ASSERT_EQ(plain.gradients.size(), again.gradients.size());
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    EXPECT_TRUE(spillway::testing::same_bytes(plain.gradients[i], again.gradients[i]))
        << "parameter " << i;
    EXPECT_GT(spillway::testing::dot(plain.gradients[i], plain.gradients[i]), 0.0);
  }
}

TEST_P(MoeRegion, CountsWhatTheContractSays) {
  constexpr int64_t kLayers = 2;
  const bool fused = GetParam().fused;
  const auto expected = [fused](int64_t prepares, int64_t dispatches, int64_t combines,
                                int64_t transports) {
    return CounterSet{.prepares = fused ? 0 : prepares,
                      .fused_prepares = fused ? prepares : 0,
                      .forward_dispatches = dispatches,
                      .combines = combines,
                      .backward_transports = transports};
  };
  EXPECT_EQ(run(GetParam(), false).total, expected(kLayers, kLayers, kLayers, 2 * kLayers));
  const RunResult again = run(GetParam(), true);
  const int64_t extra = dispatch_saved() ? 0 : kLayers;
  const int64_t spared = kLayers - extra;
  EXPECT_EQ(again.avoided, expected(spared, spared, 0, 0));
  EXPECT_EQ(again.total, expected(kLayers + extra, kLayers + extra, kLayers, 2 * kLayers));
  EXPECT_EQ(again.backward, expected(extra, extra, 0, 2 * kLayers));
  EXPECT_EQ(again.total.host_syncs, 0) << "ep = 1 waits for nobody";
}

TEST_P(MoeRegion, RecordsALayerOnce) {
  EXPECT_EQ(run(GetParam(), false).records, 2U);
  EXPECT_EQ(run(GetParam(), true).records, 2U);
}

INSTANTIATE_TEST_SUITE_P(
    , MoeRegion,
    ::testing::Values(RegionCase{"nothing_saved", {}}, RegionCase{"dispatch_saved", {"dispatch"}},
                      RegionCase{"expert_act_saved", {"expert_act"}},
                      RegionCase{"router_and_expert_up_saved", {"router", "expert_up"}},
                      RegionCase{"all_saved", {"dispatch", "router", "expert_up", "expert_act"}},
                      RegionCase{"fused", {}, 0, true},
                      RegionCase{"fused_dispatch_saved", {"dispatch"}, 0, true},
                      RegionCase{"dropping", {}, 8},
                      RegionCase{"dropping_dispatch_saved", {"dispatch"}, 8}),
    [](const auto& param) { return param.param.label; });

/// A weight that only one named result depends on.
struct SavedCase {
  const char* name;
  const char* weight;
};

class SavedResult : public ::testing::TestWithParam<SavedCase> {
 protected:
  /// The weight's gradient when the weight is 0 by the time backward computes the region again.
  static Tensor gradient_of_lost_weight(const std::vector<std::string>& save) {
    return gradient(save, true);
  }
  static Tensor gradient(const std::vector<std::string>& save, bool lose_weight) {
    TestLayer test({});
    Tape tape(test.ctx);
    const auto out = tape.region({.save = save}, test.x, [&](const Variable& x) {
      const MoeOutput output = test.layer(tape, x, test.call());
      return std::vector{output.out, output.aux_loss, output.z_loss};
    });
    // The weights of the choice are kept anyway: of the logits, balance and z terms alone remain.
    const Variable loss = ops::weighted_sum(
        tape, std::vector{spillway::testing::random_projection(tape, out[0]), out[1], out[2]},
        std::vector<double>{1.0, 0.3, 0.2});
    nn::Parameter& weight = test.store.at(GetParam().weight);
    if (lose_weight) weight.value.zero();
    tape.backward(loss);
    return weight.gradient.clone(test.ctx);
  }
};

TEST_P(SavedResult, IsNotComputedAgain) {
  const Tensor wanted = gradient({}, false);
  EXPECT_TRUE(spillway::testing::same_bytes(gradient_of_lost_weight({GetParam().name}), wanted));
  EXPECT_FALSE(spillway::testing::same_bytes(gradient_of_lost_weight({}), wanted))
      << "the weight does not matter: the case proves nothing";
}

INSTANTIATE_TEST_SUITE_P(, SavedResult,
                         ::testing::Values(SavedCase{"router", "mlp.gate.weight"},
                                           SavedCase{"expert_up", "mlp.experts.gate_up_proj"}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace spillway::moe
