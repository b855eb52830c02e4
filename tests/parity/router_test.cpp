// Routing and its terms from given logits, against transformers' functions.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "parity_model.h"
#include "spillway/ops/basic.h"
#include "spillway/ops/route.h"

namespace spillway::parity {
namespace {

/// Sums of a few dozen fp32 terms in another order.
constexpr double kTerm = 1e-6;
/// One fp32 weight: a few roundings.
constexpr double kWeight = 1e-6;
/// Differences of products of weights; elements of the gradient are of size 0.1.
constexpr double kGradient = 1e-5;

class BalanceTerms : public testing::TestWithParam<std::string> {
 protected:
  ops::RouteResult routed(const Tensor& logits) {
    autograd::Tape tape(ctx_, false);
    return ops::route(tape, autograd::Variable(logits),
                      {.top_k = fixture_.config.moe.top_k,
                       .token_scale = 1.0 / static_cast<double>(logits.dim(0))});
  }
  Tensor router_logits(int64_t layer) {
    return fixture_.tensor(ctx_, str("router_logits.", layer));
  }

  Context ctx_;
  Fixture fixture_{GetParam()};
};

TEST_P(BalanceTerms, OfOneLayerAreThoseOfTransformers) {
  double worst_aux = 0.0, worst_z = 0.0;
  const auto top_k = static_cast<double>(fixture_.config.moe.top_k);
  for (int64_t layer = 0; layer < fixture_.num_moe_layers(); ++layer) {
    const ops::RouteResult result = routed(router_logits(layer));
    const auto index = static_cast<size_t>(layer);
    const double aux = top_k * ops::scalar_value(result.aux_loss.value());
    worst_aux = std::max(worst_aux, relative(aux, fixture_.expected["aux"][index]));
    worst_z = std::max(
        worst_z, relative(ops::scalar_value(result.z_loss.value()), fixture_.expected["z"][index]));
  }
  EXPECT_TRUE(within(fixture_.name, "balance term from its logits", worst_aux, kTerm));
  EXPECT_TRUE(within(fixture_.name, "z term from its logits", worst_z, kTerm));
}

/// transformers takes all layers as one: with two it is neither their sum nor their mean.
TEST_P(BalanceTerms, OfLayersTakenTogetherAreItsPooledLoss) {
  const int64_t layers = fixture_.num_moe_layers();
  const Tensor first = router_logits(0);
  Tensor all = Tensor::empty(ctx_, {layers * first.dim(0), first.dim(1)}, DType::kF32);
  double mean = 0.0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    Tensor rows = all.rows(layer * first.dim(0), (layer + 1) * first.dim(0));
    copy(router_logits(layer), rows);
    mean += fixture_.expected["aux"][static_cast<size_t>(layer)].get<double>() /
            static_cast<double>(layers);
  }
  const double pooled = fixture_.expected["pooled_aux"];
  const double ours = static_cast<double>(fixture_.config.moe.top_k) *
                      ops::scalar_value(routed(all).aux_loss.value());
  EXPECT_TRUE(within(fixture_.name, "pooled balance term", relative(ours, pooled), kTerm));
  if (layers > 1) {
    EXPECT_GT(relative(mean, pooled), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(, BalanceTerms, testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

/// DeepSeek's router: sigmoid, selection bias, groups, scale.
class DeepseekRouter : public testing::TestWithParam<std::string> {
 protected:
  Tensor matrix(const char* key) {
    const auto rows = case_[key].get<std::vector<std::vector<float>>>();
    Tensor result =
        Tensor::empty(ctx_, {num_tokens_, static_cast<int64_t>(rows[0].size())}, DType::kF32);
    for (size_t t = 0; t < rows.size(); ++t) {
      std::copy(rows[t].begin(), rows[t].end(), result.data<float>() + t * rows[t].size());
    }
    return result;
  }
  kernels::RoutingOptions options() const {
    return {.score = kernels::ScoreFunction::kSigmoid,
            .normalize_topk = case_["normalize_topk"],
            .scale = case_["scale"],
            .groups = case_["groups"],
            .topk_groups = case_["topk_groups"]};
  }
  Tensor bias() {
    const auto values = case_["bias"].get<std::vector<float>>();
    return Tensor::from<float>(ctx_, {static_cast<int64_t>(values.size())}, values);
  }

  Context ctx_;
  nlohmann::json case_ = read_json(fixture_path("deepseek_router.json")).at(GetParam());
  int64_t num_tokens_ = static_cast<int64_t>(case_["logits"].size());
  int64_t top_k_ = case_["top_k"];
};

TEST_P(DeepseekRouter, ChoiceWeightsAndGradient) {
  const Tensor logits = matrix("logits"), weights = matrix("weights"),
               upstream = matrix("d_weights");
  const auto ids = case_["ids"].get<std::vector<std::vector<int32_t>>>();
  Tensor topk_idx = Tensor::empty(ctx_, {num_tokens_, top_k_}, DType::kI32);
  Tensor gate = Tensor::empty(ctx_, {num_tokens_, top_k_}, DType::kF32);
  Tensor probs = Tensor::empty(ctx_, logits.shape(), DType::kF32);
  kernels::route(ctx_, {logits, options(), topk_idx, gate, probs, bias()});

  // By expert: the order within a token is not specified there.
  Tensor d_gate = Tensor::empty(ctx_, gate.shape(), DType::kF32);
  Tensor wanted = Tensor::empty(ctx_, gate.shape(), DType::kF32);
  for (int64_t t = 0; t < num_tokens_; ++t) {
    std::map<int32_t, int64_t> place;
    for (int64_t k = 0; k < top_k_; ++k) {
      place[ids[static_cast<size_t>(t)][static_cast<size_t>(k)]] = t * top_k_ + k;
    }
    for (int64_t i = t * top_k_; i < (t + 1) * top_k_; ++i) {
      const int32_t expert = topk_idx.data<int32_t>()[i];
      ASSERT_TRUE(place.contains(expert)) << "token " << t << " chose " << expert;
      wanted.data<float>()[i] = weights.data<float>()[place[expert]];
      d_gate.data<float>()[i] = upstream.data<float>()[place[expert]];
      place.erase(expert);
    }
  }
  EXPECT_TRUE(within(GetParam(), "weights", relative_l2(gate, wanted), kWeight));

  Tensor dlogits = Tensor::empty(ctx_, logits.shape(), DType::kF32);
  kernels::route_backward(ctx_, {.d_gate = d_gate,
                                 .d_probs = {},
                                 .logits = logits,
                                 .topk_idx = topk_idx,
                                 .gate = gate,
                                 .probs = probs,
                                 .options = options(),
                                 .dlogits = dlogits});
  EXPECT_TRUE(within(GetParam(), "gradient of the logits", relative_l2(dlogits, matrix("d_logits")),
                     kGradient));
}

INSTANTIATE_TEST_SUITE_P(, DeepseekRouter,
                         testing::Values("plain", "biased", "grouped", "grouped_biased_scaled",
                                         "grouped_raw", "grouped_negative"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace spillway::parity
