// Weights, probabilities and gradients of every score function, against formulas in double.
#include <gtest/gtest.h>

#include "routing_reference.h"
#include "support/gradient_check.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::Guarded;
using testing::random_tensor;
using testing::tensor_of;
using testing::to_doubles;
using testing::tolerance;

// ---- weights and probabilities ------------------------------------------------------------------

using WeightCase = std::tuple<ScoreFunction, bool, int64_t, DType>;
class RouteWeights : public ::testing::TestWithParam<WeightCase> {};

TEST_P(RouteWeights, AgainstTheFormulas) {
  const auto& [score, normalize, top_k, dtype] = GetParam();
  constexpr int64_t kTokens = 33, kExperts = 13;
  constexpr double kScale = 2.446;
  Context ctx(Device::kCpu, 2);
  const Tensor logits = random_tensor(ctx, {kTokens, kExperts}, dtype, 4, 3.0);
  const RoutingOptions options{.score = score, .normalize_topk = normalize, .scale = kScale};
  Guarded ids(ctx, {kTokens, top_k}, DType::kI32);
  Guarded gate(ctx, {kTokens, top_k}, dtype), probs(ctx, {kTokens, kExperts}, dtype);
  route(ctx, {.logits = logits,
              .options = options,
              .topk_idx = ids.tensor,
              .gate = gate.tensor,
              .probs = probs.tensor});
  for (int64_t t = 0; t < kTokens; ++t) {
    const Row scores = reference_scores(row_of(logits, t), score);
    const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
    Row wanted_probs, wanted_gate;
    for (const double s : scores) wanted_probs.push_back(s / all);
    double chosen = 0.0;
    for (int64_t j = 0; j < top_k; ++j) {
      wanted_gate.push_back(
          scores.at(static_cast<size_t>(ids.tensor.data<int32_t>()[t * top_k + j])));
      chosen += wanted_gate.back();
    }
    for (double& w : wanted_gate) w *= kScale / (normalize && top_k > 1 ? chosen : 1.0);
    EXPECT_TRUE(all_near(probs.tensor.rows(t, t + 1), wanted_probs, tolerance(dtype)));
    EXPECT_TRUE(all_near(gate.tensor.rows(t, t + 1), wanted_gate, tolerance(dtype)));
  }
  EXPECT_TRUE(ids.intact() && gate.intact() && probs.intact());
}

std::string route_weights_label(const ::testing::TestParamInfo<RouteWeights::ParamType>& test) {
  const auto& [score, normalize, top_k, dtype] = test.param;
  return str(score_name(score), normalize ? "_norm" : "_raw", "_k", top_k, "_", dtype_name(dtype));
}
INSTANTIATE_TEST_SUITE_P(Grid, RouteWeights,
                         ::testing::Combine(::testing::ValuesIn(kAllScores), ::testing::Bool(),
                                            ::testing::Values(1, 4),
                                            ::testing::Values(DType::kF32, DType::kF64)),
                         route_weights_label);

class ExtremeLogits : public ::testing::TestWithParam<std::tuple<ScoreFunction, bool, DType>> {};

TEST_P(ExtremeLogits, GiveFiniteWeightsAndGradients) {
  const auto& [score, normalize, dtype] = GetParam();
  Context ctx;
  const Row rows{1e4,  -1e4, 1e4,  -1e4,   // both ends
                 -1e4, -1e4, -1e4, -1e4,   // all scores vanish
                 1e4,  1e4,  1e4,  1e4,    //
                 -95,  -90,  -88,  -87.5,  // where f32 underflows
                 88,   89,   90,   0};
  Tensor logits = Tensor::empty(ctx, {5, 4}, dtype);
  testing::set_values(logits, rows);
  const RoutingOptions options{.score = score, .normalize_topk = normalize, .scale = 2.0};
  Routed routed(ctx, logits, 2);
  route(ctx, routed.args(logits, options));
  Tensor dlogits = Tensor::empty(ctx, logits.shape(), dtype);
  route_backward(ctx, {.d_gate = random_tensor(ctx, {5, 2}, dtype, 1),
                       .d_probs = random_tensor(ctx, {5, 4}, dtype, 2),
                       .logits = logits,
                       .topk_idx = routed.ids,
                       .gate = routed.gate,
                       .probs = routed.probs,
                       .options = options,
                       .z_scale = 0.01,
                       .dlogits = dlogits});
  // z: 2 * 0.01 * 1e4 = 200 is the largest there can be; weights are at most scale * 100.
  for (const Tensor* t : {&routed.gate, &routed.probs, &dlogits}) {
    for (const double value : to_doubles(*t)) EXPECT_TRUE(std::abs(value) < 1e3) << value;
  }
  for (const double p : to_doubles(routed.probs)) EXPECT_TRUE(p >= 0.0 && p <= 1.0) << p;
}

std::string extreme_logits_label(const ::testing::TestParamInfo<ExtremeLogits::ParamType>& test) {
  const auto& [score, normalize, dtype] = test.param;
  return str(score_name(score), normalize ? "_norm_" : "_raw_", dtype_name(dtype));
}
INSTANTIATE_TEST_SUITE_P(Grid, ExtremeLogits,
                         ::testing::Combine(::testing::ValuesIn(kAllScores), ::testing::Bool(),
                                            ::testing::Values(DType::kF32, DType::kF64)),
                         extreme_logits_label);

// ---- gradients ----------------------------------------------------------------------------------

/// score, normalize, groups, bias, K.
using GradientCase = std::tuple<ScoreFunction, bool, bool, bool, int64_t>;
class ScoreGradient : public ::testing::TestWithParam<GradientCase> {};

TEST_P(ScoreGradient, MatchesCentralDifferences) {
  const auto& [score, normalize, grouped, biased, top_k] = GetParam();
  Context ctx;
  constexpr int64_t kTokens = 4, kExperts = 6;
  const RoutingOptions options{.score = score,
                               .normalize_topk = normalize,
                               .scale = 1.7,
                               .groups = grouped ? 3 : 1,
                               .topk_groups = grouped ? 2 : 1};
  const Tensor bias =
      biased ? tensor_of<float>(ctx, {kExperts}, {0.5F, -1, 0.25F, 2, -0.5F, 0}) : Tensor();
  const Tensor logits = random_tensor(ctx, {kTokens, kExperts}, DType::kF64, 3, 2.0);
  const Tensor d_gate = random_tensor(ctx, {kTokens, top_k}, DType::kF64, 4);
  const Tensor d_probs = random_tensor(ctx, {kTokens, kExperts}, DType::kF64, 5);
  Routed routed(ctx, logits, top_k);
  route(ctx, routed.args(logits, options, bias));
  // The choice stays as it is: no gradient goes through it.
  auto loss = [&](const Tensor& x, bool gate_term, bool probs_term, double z_scale) {
    Routed now(ctx, x, top_k);
    now.ids = routed.ids;
    route_given(ctx, now.args(x, options));
    return (gate_term ? testing::dot(now.gate, d_gate) : 0.0) +
           (probs_term ? testing::dot(now.probs, d_probs) : 0.0) + z_scale * z_loss_sum(ctx, x);
  };
  constexpr double kZ = 0.3;
  struct Terms {
    bool gate, probs;
    double z;
  };
  const Tensor none, no_gate = Tensor::zeros(ctx, d_gate.shape(), DType::kF64);
  for (const Terms& terms : {Terms{true, false, 0.0}, Terms{false, true, 0.0},
                             Terms{false, false, kZ}, Terms{true, true, kZ}}) {
    Tensor dlogits = Tensor::empty(ctx, logits.shape(), DType::kF64);
    route_backward(ctx, {.d_gate = terms.gate ? d_gate : no_gate,
                         .d_probs = terms.probs ? d_probs : none,
                         .logits = logits,
                         .topk_idx = routed.ids,
                         .gate = routed.gate,
                         .probs = routed.probs,
                         .options = options,
                         .z_scale = terms.z,
                         .dlogits = dlogits});
    EXPECT_TRUE(testing::gradient_matches(
        [&](const Tensor& x) { return loss(x, terms.gate, terms.probs, terms.z); }, logits,
        dlogits))
        << "gate " << terms.gate << " probs " << terms.probs << " z " << terms.z;
  }
}

std::string score_gradient_label(const ::testing::TestParamInfo<GradientCase>& test) {
  const auto& [score, normalize, grouped, biased, top_k] = test.param;
  return str(score_name(score), normalize ? "_norm" : "_raw", grouped ? "_groups" : "",
             biased ? "_bias" : "", "_k", top_k);
}
INSTANTIATE_TEST_SUITE_P(Grid, ScoreGradient,
                         ::testing::Combine(::testing::ValuesIn(kAllScores), ::testing::Bool(),
                                            ::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(1, 3)),
                         score_gradient_label);

TEST(ScoreBackward, Float32MatchesFloat64) {
  Context ctx(Device::kCpu, 2);
  for (const ScoreFunction score : {ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus}) {
    SCOPED_TRACE(score_name(score));
    constexpr int64_t kTokens = 70, kExperts = 64, kTopK = 6;
    const Tensor logits = random_tensor(ctx, {kTokens, kExperts}, DType::kF32, 6, 4.0);
    const Tensor d_gate = random_tensor(ctx, {kTokens, kTopK}, DType::kF32, 7);
    const Tensor d_probs = random_tensor(ctx, {kTokens, kExperts}, DType::kF32, 8);
    auto widened = [&](const Tensor& t) {
      return tensor_of<double>(ctx, t.shape(), to_doubles(t));
    };
    auto backward = [&](const Tensor& x, const Tensor& dg, const Tensor& dp, const Tensor& ids) {
      Routed routed(ctx, x, kTopK);
      if (ids.defined()) {
        routed.ids = ids;
        route_given(ctx, routed.args(x, {.score = score}));
      } else {
        route(ctx, routed.args(x, {.score = score}));
      }
      Tensor dlogits = Tensor::empty(ctx, x.shape(), x.dtype());
      route_backward(ctx, {.d_gate = dg,
                           .d_probs = dp,
                           .logits = x,
                           .topk_idx = routed.ids,
                           .gate = routed.gate,
                           .probs = routed.probs,
                           .options = {.score = score},
                           .z_scale = 0.1,
                           .dlogits = dlogits});
      return std::pair{dlogits, routed.ids};
    };
    const auto [f32, ids] = backward(logits, d_gate, d_probs, {});
    const auto [f64, same] = backward(widened(logits), widened(d_gate), widened(d_probs), ids);
    // z brings gradients of size 1; a few roundings of f32 of that.
    EXPECT_TRUE(all_near(f32, to_doubles(f64), 2e-6, 1.0));
  }
}

}  // namespace
}  // namespace spillway::kernels
