#include "spillway/moe/layer.h"

#include <gtest/gtest.h>

#include "moe_fixture.h"

namespace spillway::moe {
namespace {

using spillway::testing::same_bytes;

struct LayerCase {
  const char* label;
  LayerOptions options;
  bool fused = false;
};

LayerOptions with(void (*change)(LayerOptions&)) {
  LayerOptions options;
  change(options);
  return options;
}

class MoeLayerGradient : public ::testing::TestWithParam<LayerCase> {};

TEST_P(MoeLayerGradient, OfParametersAndInputMatchesDifferences) {
  TestLayer test(GetParam().options);
  EXPECT_TRUE(spillway::testing::parameter_gradients_match(
      test.ctx, test.store, [&](Tape& tape) { return test.scalar(tape); }));
  if (GetParam().options.capacity > 0) {
    EXPECT_GT(test.records.front().ledger.dropped_assignments[0], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , MoeLayerGradient,
    ::testing::Values(
        LayerCase{"plain", {}},
        LayerCase{"shared_expert", with([](LayerOptions& o) { o.config.shared_experts = 2; })},
        LayerCase{"aligned", with([](LayerOptions& o) { o.config.alignment = 8; })},
        LayerCase{"top_1", with([](LayerOptions& o) { o.config.top_k = 1; })},
        LayerCase{"all_experts", with([](LayerOptions& o) { o.config.top_k = 4; })},
        LayerCase{"softmax_over_chosen",
                  with([](LayerOptions& o) { o.config.router.softmax_before_topk = false; })},
        LayerCase{"not_normalized",
                  with([](LayerOptions& o) { o.config.router.normalize_topk = false; })},
        LayerCase{"scaled", with([](LayerOptions& o) { o.config.router.scale = 2.5; })},
        LayerCase{"forced_balanced",
                  with([](LayerOptions& o) { o.config.router.force = ForceRouting::kBalanced; })},
        LayerCase{"one_token", with([](LayerOptions& o) {
                    o.tokens = 1;
                    o.config.top_k = 4;
                  })},
        LayerCase{"dropping", with([](LayerOptions& o) { o.capacity = 9; })},
        LayerCase{"dropping_aligned_shared", with([](LayerOptions& o) {
                    o.capacity = 12;
                    o.config.alignment = 4;
                    o.config.shared_experts = 1;
                  })}),
    [](const auto& param) { return param.param.label; });

/// The whole layer in plain loops over the tokens.
std::vector<double> reference(TestLayer& test) {
  const MoeConfig& config = test.options.config;
  const auto dot = [](const double* a, const double* b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto network = [&](const double* up, const double* down, int64_t width, const double* x,
                           double weight, double* out) {
    std::vector<double> act(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) {
      const double gate = dot(up + i * kHidden, x, kHidden);
      act[static_cast<size_t>(i)] =
          gate / (1.0 + std::exp(-gate)) * dot(up + (width + i) * kHidden, x, kHidden);
    }
    for (int64_t h = 0; h < kHidden; ++h) {
      out[h] += weight * dot(down + h * width, act.data(), width);
    }
  };
  const int64_t width = config.ffn;
  std::vector<double> y(static_cast<size_t>(test.options.tokens * kHidden), 0.0);
  for (int64_t t = 0; t < test.options.tokens; ++t) {
    const double* const x = test.x.value().data<double>() + t * kHidden;
    double* const out = y.data() + t * kHidden;
    std::vector<std::pair<double, int64_t>> scores;
    double all = 0.0;
    for (int64_t e = 0; e < config.experts; ++e) {
      const double p =
          std::exp(dot(test.weight("gate.weight").data<double>() + e * kHidden, x, kHidden));
      scores.push_back({p, e});
      all += p;
    }
    std::sort(scores.rbegin(), scores.rend());
    double chosen = 0.0;
    for (int64_t k = 0; k < config.top_k; ++k) chosen += scores[static_cast<size_t>(k)].first;
    for (int64_t k = 0; k < config.top_k; ++k) {
      const auto [p, e] = scores[static_cast<size_t>(k)];
      const double weight = p / (config.router.normalize_topk ? chosen : all) * config.router.scale;
      network(test.weight("experts.gate_up_proj").data<double>() + e * 2 * width * kHidden,
              test.weight("experts.down_proj").data<double>() + e * kHidden * width, width, x,
              weight, out);
    }
    if (config.shared_experts > 0) {
      network(test.weight("shared_experts.gate_up_proj.weight").data<double>(),
              test.weight("shared_experts.down_proj.weight").data<double>(),
              config.shared_experts * width, x, 1.0, out);
    }
  }
  return y;
}

class MoeLayerReference : public ::testing::TestWithParam<LayerCase> {};

TEST_P(MoeLayerReference, OutputIsThatOfPlainLoops) {
  TestLayer test(GetParam().options);
  MoeCall call = test.call();
  call.fused = GetParam().fused;
  Tape tape(test.ctx, false);
  const Tensor y = test.layer(tape, test.x, call).out.value();
  // A few sums of up to five terms of size one, in another order.
  constexpr double kRounding = 1e-13;
  EXPECT_TRUE(spillway::testing::all_near(y, reference(test), kRounding, 1.0));
}

INSTANTIATE_TEST_SUITE_P(
    , MoeLayerReference,
    ::testing::Values(
        LayerCase{"plain", {}}, LayerCase{"fused", {}, true},
        LayerCase{"shared_expert", with([](LayerOptions& o) { o.config.shared_experts = 2; })},
        LayerCase{"aligned", with([](LayerOptions& o) { o.config.alignment = 16; })},
        LayerCase{"not_normalized",
                  with([](LayerOptions& o) { o.config.router.normalize_topk = false; })},
        LayerCase{"scaled", with([](LayerOptions& o) { o.config.router.scale = 2.5; })},
        LayerCase{"many_experts", with([](LayerOptions& o) {
                    o.config.experts = 16;
                    o.config.top_k = 5;
                    o.tokens = 33;
                  })}),
    [](const auto& param) { return param.param.label; });

class MoeLayerTest : public ::testing::Test {
 protected:
  static double sum_squares(const Tensor& x) { return spillway::testing::dot(x, x); }
};

TEST_F(MoeLayerTest, ZeroTokensPassForwardAndBackward) {
  TestLayer test(with([](LayerOptions& o) {
    o.tokens = 0;
    o.config.shared_experts = 1;
    o.config.alignment = 4;
  }));
  Tape tape(test.ctx);
  const MoeOutput out = test.run(tape);
  EXPECT_EQ(out.out.shape(), (Shape{0, kHidden}));
  EXPECT_EQ(ops::scalar_value(out.aux_loss.value()), 0.0);
  EXPECT_EQ(ops::scalar_value(out.z_loss.value()), 0.0);
  tape.backward(out.out, Tensor::zeros(test.ctx, {0, kHidden}, DType::kF64));
  // The transports happened all the same: other ranks would wait for them.
  EXPECT_EQ(test.ctx.counters().total(),
            (CounterSet{
                .prepares = 1, .forward_dispatches = 1, .combines = 1, .backward_transports = 2}));
  for (const nn::Parameter& parameter : test.store.all()) {
    EXPECT_EQ(sum_squares(parameter.gradient), 0.0) << parameter.spec.name;
  }
}

TEST_F(MoeLayerTest, ATokenThatLosesAllPairsKeepsItsSharedExperts) {
  LayerOptions options = with([](LayerOptions& o) {
    o.config.shared_experts = 1;
    o.config.router.force = ForceRouting::kBalanced;
    o.capacity = 1;  // of twelve assignments
  });
  TestLayer test(options);
  Tape tape(test.ctx, false);
  const Tensor y = test.run(tape).out.value();
  const ep::Ledger& ledger = test.records.front().ledger;
  EXPECT_EQ(ledger.dropped_assignments[0], 11);
  EXPECT_EQ(ledger.fully_dropped_tokens, 5);
  // Forced: token 0 has experts 0 and 1, and expert 0's first row is the one that is kept.
  const nn::SwigluMlp shared("mlp.shared_experts.", test.store);
  const Tensor alone = shared(tape, test.x).value();
  EXPECT_FALSE(same_bytes(y.rows(0, 1), alone.rows(0, 1)));
  EXPECT_TRUE(same_bytes(y.rows(1, 6), alone.rows(1, 6)));
}

TEST_F(MoeLayerTest, ARecordHoldsLedgerAndLosses) {
  TestLayer test({});
  Tape tape(test.ctx, false);
  MoeCall call = test.call();
  call.micro_batch = 3;
  const MoeOutput out = test.layer(tape, test.x, call);
  ASSERT_EQ(test.records.size(), 1U);
  const LayerRecord& record = test.records.front();
  EXPECT_EQ(record.moe_layer, 0);
  EXPECT_EQ(record.micro_batch, 3);
  EXPECT_EQ(record.aux_loss, ops::scalar_value(out.aux_loss.value()));
  EXPECT_EQ(record.z_loss, ops::scalar_value(out.z_loss.value()));
  int64_t routed = 0;
  for (const int64_t count : record.ledger.expert_tokens) routed += count;
  EXPECT_EQ(routed, 6 * 2);
  EXPECT_EQ(record.ledger.group_tokens, 6);
}

TEST_F(MoeLayerTest, RecordsAreOptional) {
  TestLayer test({});
  Tape tape(test.ctx, false);
  MoeCall call = test.call();
  call.records = nullptr;
  EXPECT_NO_THROW(test.layer(tape, test.x, call));
}

TEST_F(MoeLayerTest, EvaluationWithoutLossesFitsItsOwnBuffer) {
  TestLayer test(with([](LayerOptions& o) { o.capacity = 2; }));
  Tape tape(test.ctx, false);
  MoeCall call = test.call();
  call.sizing = ep::Sizing::kLossless;
  const Tensor y = test.layer(tape, test.x, call).out.value();
  EXPECT_EQ(test.records.front().ledger.dropped_assignments[0], 0);
  constexpr double kRounding = 1e-13;  // as above
  EXPECT_TRUE(spillway::testing::all_near(y, reference(test), kRounding, 1.0));
  EXPECT_EQ(test.self.session.capacity(0), 2);
}

TEST_F(MoeLayerTest, OverflowWithoutDropIsAnErrorThatLeavesTheTapeUsable) {
  TestLayer test({});
  ep::EpConfig config = TestLayer::ep_config(test.options);
  config.recv_capacity_per_rank = {3};
  test.self.session.finalize();
  test.self.session.bootstrap(config);
  Tape tape(test.ctx);
  EXPECT_THROW(test.run(tape), ep::OverflowError);
  tape.clear();
  EXPECT_EQ(test.self.session.live_handles(), 0);
  EXPECT_TRUE(test.records.empty());
}

TEST_F(MoeLayerTest, HandlesDieWithTheTape) {
  TestLayer test({});
  Tape tape(test.ctx);
  Variable loss = test.scalar(tape);
  EXPECT_EQ(test.self.session.live_handles(), 1);
  tape.backward(loss);
  EXPECT_EQ(test.self.session.live_handles(), 0);
}

TEST_F(MoeLayerTest, SpecsFollowTransformers) {
  std::vector<nn::ParameterSpec> specs;
  MoeConfig config = small_config();
  config.shared_experts = 2;
  MoeLayer::append_specs(config, 8, 0.01, "mlp.", DType::kF32, specs);
  std::vector<std::string> lines;
  for (const nn::ParameterSpec& s : specs) {
    lines.push_back(
        str(s.name, " ", s.shape, s.sync == nn::SyncGroup::kExpert ? " expert" : " dense"));
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"mlp.gate.weight [4, 8] dense",
                                             "mlp.experts.gate_up_proj [4, 6, 8] expert",
                                             "mlp.experts.down_proj [4, 8, 3] expert",
                                             "mlp.shared_experts.gate_up_proj.weight [12, 8] dense",
                                             "mlp.shared_experts.down_proj.weight [8, 6] dense"}));
}

}  // namespace
}  // namespace spillway::moe
