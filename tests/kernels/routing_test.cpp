#include "spillway/kernels/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/gradient_check.h"
#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::Guarded;
using testing::random_tensor;
using testing::same_bytes;
using testing::tensor_of;
using testing::throws_with;
using testing::tolerance;

struct RoutingCase {
  int64_t tokens, experts, top_k;
  RoutingOptions options;
  DType dtype;
};
std::string options_name(const RoutingOptions& options) {
  return str(options.softmax_before_topk ? "pre" : "post",
             options.normalize_topk ? "_norm" : "_raw", options.scale == 1.0 ? "" : "_scaled");
}
std::string case_name(const ::testing::TestParamInfo<RoutingCase>& info) {
  const RoutingCase& c = info.param;
  return str("t", c.tokens, "_e", c.experts, "_k", c.top_k, "_", options_name(c.options), "_",
             dtype_name(c.dtype));
}
void PrintTo(const RoutingCase& c, std::ostream* out) {
  *out << "t" << c.tokens << "_e" << c.experts << "_k" << c.top_k;
}

std::vector<RoutingOptions> all_options() {
  return {{.softmax_before_topk = true, .normalize_topk = true, .scale = 1.0},
          {.softmax_before_topk = true, .normalize_topk = false, .scale = 2.5},
          {.softmax_before_topk = false, .normalize_topk = true, .scale = 1.0},
          {.softmax_before_topk = true, .normalize_topk = true, .scale = 0.5},
          {.softmax_before_topk = false, .normalize_topk = false, .scale = 2.5}};
}

std::vector<double> softmax(std::vector<double> x) {
  double sum = 0.0;
  const double largest = *std::max_element(x.begin(), x.end());
  for (double& value : x) sum += value = std::exp(value - largest);
  for (double& value : x) value /= sum;
  return x;
}

std::vector<double> row_of(const Tensor& t, int64_t row) {
  std::vector<double> values;
  for (int64_t i = 0; i < t.dim(1); ++i) values.push_back(testing::element(t, row * t.dim(1) + i));
  return values;
}

/// Weights as the options say, step by step: softmax, choice, division by the sum, scale.
std::vector<double> reference_gate(const std::vector<double>& logits,
                                   const std::vector<int32_t>& ids, const RoutingOptions& options) {
  const std::vector<double> probs = softmax(logits);
  std::vector<double> gate;
  for (const int32_t id : ids) {
    const auto e = static_cast<size_t>(std::max(id, 0));
    gate.push_back(id < 0 ? 0.0 : options.softmax_before_topk ? probs[e] : std::exp(logits[e]));
  }
  const double sum = std::accumulate(gate.begin(), gate.end(), 0.0);
  const bool divide = !options.softmax_before_topk || (options.normalize_topk && ids.size() > 1);
  for (double& weight : gate) weight *= options.scale / (divide && sum > 0.0 ? sum : 1.0);
  return gate;
}

class Route : public ::testing::TestWithParam<RoutingCase> {
 protected:
  Context ctx_{Device::kCpu, 2};
  int64_t tokens_ = GetParam().tokens, experts_ = GetParam().experts, k_ = GetParam().top_k;
  DType dtype_ = GetParam().dtype;
  Tensor logits_ = random_tensor(ctx_, {tokens_, experts_}, dtype_, 1, 2.0);
};

TEST_P(Route, AgainstAFullSort) {
  Guarded ids(ctx_, {tokens_, k_}, DType::kI32);
  Guarded gate(ctx_, {tokens_, k_}, dtype_), probs(ctx_, {tokens_, experts_}, dtype_);
  route(ctx_, {.logits = logits_,
               .options = GetParam().options,
               .topk_idx = ids.tensor,
               .gate = gate.tensor,
               .probs = probs.tensor});
  for (int64_t t = 0; t < tokens_; ++t) {
    const std::vector<double> logits = row_of(logits_, t);
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(k_));
    const int32_t* chosen = ids.tensor.data<int32_t>() + t * k_;
    ASSERT_EQ(std::vector<int32_t>(chosen, chosen + k_), order) << "token " << t;
    EXPECT_TRUE(all_near(gate.tensor.rows(t, t + 1),
                         reference_gate(logits, order, GetParam().options), tolerance(dtype_)));
    EXPECT_TRUE(all_near(probs.tensor.rows(t, t + 1), softmax(logits), tolerance(dtype_)));
  }
  EXPECT_TRUE(ids.intact() && gate.intact() && probs.intact());
}

TEST_P(Route, GivenTheChoiceTheWeightsAreTheSame) {
  Tensor ids = Tensor::empty(ctx_, {tokens_, k_}, DType::kI32);
  Tensor gate = Tensor::empty(ctx_, {tokens_, k_}, dtype_), gate2 = gate.clone(ctx_);
  Tensor probs = Tensor::empty(ctx_, {tokens_, experts_}, dtype_), probs2 = probs.clone(ctx_);
  const RoutingOptions options = GetParam().options;
  Context one;
  route(ctx_,
        {.logits = logits_, .options = options, .topk_idx = ids, .gate = gate, .probs = probs});
  const Tensor chosen = ids.clone(ctx_);
  route_given(
      one,
      {.logits = logits_, .options = options, .topk_idx = ids, .gate = gate2, .probs = probs2});
  EXPECT_TRUE(same_bytes(chosen, ids));
  EXPECT_TRUE(same_bytes(gate, gate2));
  EXPECT_TRUE(same_bytes(probs, probs2));
}

std::vector<RoutingCase> cases() {
  std::vector<RoutingCase> all;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const RoutingOptions& options : all_options()) {
      all.push_back({0, 8, 2, options, dtype});
      all.push_back({5, 7, 1, options, dtype});
      all.push_back({9, 8, 8, options, dtype});
      all.push_back({65, 128, 8, options, dtype});
    }
    all.push_back({33, 256, 8, {}, dtype});
    all.push_back({3, 512, 512, {}, dtype});
    all.push_back({1, 1, 1, {}, dtype});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Grid, Route, ::testing::ValuesIn(cases()), case_name);

/// Everything that a route call makes from logits.
struct Routed {
  Routed(Context& ctx, const Tensor& logits, int64_t top_k)
      : ids(Tensor::zeros(ctx, {logits.dim(0), top_k}, DType::kI32)),
        gate(Tensor::zeros(ctx, {logits.dim(0), top_k}, logits.dtype())),
        probs(Tensor::zeros(ctx, logits.shape(), logits.dtype())) {}
  RouteArgs args(const Tensor& logits, const RoutingOptions& options) {
    return {.logits = logits, .options = options, .topk_idx = ids, .gate = gate, .probs = probs};
  }
  Tensor ids, gate, probs;
};

TEST(RouteChoice, TiesGoToTheLowerId) {
  Context ctx;
  const Tensor logits = tensor_of<float>(ctx, {2, 6}, {1, 3, 1, 3, 3, 0, 2, 2, 2, 2, 2, 2});
  for (const bool before : {true, false}) {
    Routed routed(ctx, logits, 4);
    route(ctx, routed.args(logits, {.softmax_before_topk = before}));
    const std::vector<int32_t> ids(routed.ids.data<int32_t>(), routed.ids.data<int32_t>() + 8);
    EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 4, 0, 0, 1, 2, 3})) << before;
  }
}

TEST(RouteChoice, LargeLogitsStayFinite) {
  Context ctx;
  const Tensor logits = tensor_of<float>(ctx, {2, 3}, {3e4f, -3e4f, 2.9e4f, -3e4f, -3e4f, -3e4f});
  Routed routed(ctx, logits, 2);
  route(ctx, routed.args(logits, {}));
  EXPECT_TRUE(all_near(routed.probs, {1, 0, 0, 1.0 / 3, 1.0 / 3, 1.0 / 3}, 1e-6));
  EXPECT_TRUE(all_near(routed.gate, {1, 0, 0.5, 0.5}, 1e-6));
}

TEST(RouteChoice, NaNLogitsStillGiveDistinctIds) {
  Context ctx;
  Tensor logits = Tensor::zeros(ctx, {1, 5}, DType::kF32);
  for (float& value : logits.span<float>()) value = std::nanf("");
  Routed routed(ctx, logits, 3);
  route(ctx, routed.args(logits, {}));
  std::vector<int32_t> ids(routed.ids.data<int32_t>(), routed.ids.data<int32_t>() + 3);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
  EXPECT_TRUE(ids.front() >= 0 && ids.back() < 5);
  EXPECT_TRUE(std::isnan(routed.gate.data<float>()[0]));
}

TEST(RouteGiven, NoneHasNoWeightAndTheOthersShare) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, {2, 5}, DType::kF64, 2);
  for (const RoutingOptions& options : all_options()) {
    Routed routed(ctx, logits, 3);
    const std::vector<int32_t> given{4, -1, 0, -1, -1, -1};
    routed.ids = tensor_of<int32_t>(ctx, {2, 3}, given);
    route_given(ctx, routed.args(logits, options));
    std::vector<double> wanted = reference_gate(row_of(logits, 0), {4, -1, 0}, options);
    wanted.insert(wanted.end(), 3, 0.0);
    EXPECT_TRUE(all_near(routed.gate, wanted, 1e-13)) << options_name(options);
    EXPECT_EQ(routed.gate.data<double>()[1], 0.0);
  }
}

TEST(RouteGiven, ForcedIdsWithVanishingProbabilityGetFiniteWeights) {
  Context ctx;
  const Tensor logits = tensor_of<float>(ctx, {1, 4}, {500.0f, 1.0f, 1.0f, 0.0f});
  Routed routed(ctx, logits, 2);
  routed.ids = tensor_of<int32_t>(ctx, {1, 2}, {1, 2});
  route_given(ctx, routed.args(logits, {}));
  EXPECT_TRUE(all_near(routed.gate, {0.5, 0.5}, 1e-6));
}

struct GradientCase {
  const char* name;
  RoutingOptions options;
  int64_t top_k;
  bool with_none;
};
class RouteGradient : public ::testing::TestWithParam<GradientCase> {};

TEST_P(RouteGradient, MatchesCentralDifferences) {
  Context ctx;
  constexpr int64_t kTokens = 4, kExperts = 6;
  const auto [name, options, top_k, with_none] = GetParam();
  const Tensor logits = random_tensor(ctx, {kTokens, kExperts}, DType::kF64, 3);
  const Tensor d_gate = random_tensor(ctx, {kTokens, top_k}, DType::kF64, 4);
  const Tensor d_probs = random_tensor(ctx, {kTokens, kExperts}, DType::kF64, 5);
  constexpr double kZ = 0.3;
  Routed routed(ctx, logits, top_k);
  route(ctx, routed.args(logits, options));
  if (with_none) routed.ids.data<int32_t>()[1] = routed.ids.data<int32_t>()[top_k] = -1;
  route_given(ctx, routed.args(logits, options));
  // The choice stays as it is: no gradient goes through it.
  auto loss = [&](const Tensor& x, bool probs_term, double z_scale) {
    Routed now(ctx, x, top_k);
    now.ids = routed.ids;
    route_given(ctx, now.args(x, options));
    return testing::dot(now.gate, d_gate) + (probs_term ? testing::dot(now.probs, d_probs) : 0.0) +
           z_scale * z_loss_sum(ctx, x);
  };
  Tensor none;
  for (const bool probs_term : {false, true}) {
    for (const double z_scale : {0.0, kZ}) {
      // Weights over one chosen expert are constant: without other terms nothing to check.
      if (!options.softmax_before_topk && top_k == 1 && !probs_term && z_scale == 0.0) continue;
      Tensor dlogits = Tensor::empty(ctx, logits.shape(), DType::kF64);
      route_backward(ctx, {.d_gate = d_gate,
                           .d_probs = probs_term ? d_probs : none,
                           .logits = logits,
                           .topk_idx = routed.ids,
                           .gate = routed.gate,
                           .probs = routed.probs,
                           .options = options,
                           .z_scale = z_scale,
                           .dlogits = dlogits});
      EXPECT_TRUE(testing::gradient_matches(
          [&](const Tensor& x) { return loss(x, probs_term, z_scale); }, logits, dlogits))
          << "probs " << probs_term << " z " << z_scale;
    }
  }
}

std::vector<GradientCase> gradient_cases() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const RoutingOptions& options : all_options()) {
      for (const char* tail : {"_k1", "_k3", "_k3_none", "_k6"}) {
        result.push_back(options_name(options) + tail);
      }
    }
    return result;
  }();
  std::vector<GradientCase> all;
  for (const RoutingOptions& options : all_options()) {
    for (const auto& [top_k, with_none] :
         std::vector<std::pair<int64_t, bool>>{{1, false}, {3, false}, {3, true}, {6, false}}) {
      all.push_back({names[all.size()].c_str(), options, top_k, with_none});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Options, RouteGradient, ::testing::ValuesIn(gradient_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(RouteBackward, Float32MatchesFloat64AndThreadsDoNotChangeTheBits) {
  Context one, two(Device::kCpu, 2);
  constexpr int64_t kTokens = 70, kExperts = 64, kTopK = 6;
  const Tensor logits = random_tensor(one, {kTokens, kExperts}, DType::kF32, 6);
  const Tensor d_gate = random_tensor(one, {kTokens, kTopK}, DType::kF32, 7);
  const Tensor d_probs = random_tensor(one, {kTokens, kExperts}, DType::kF32, 8);
  auto widened = [&](const Tensor& t) {
    return tensor_of<double>(one, t.shape(), testing::to_doubles(t));
  };
  auto backward = [](Context& ctx, const Tensor& x, const Tensor& dg, const Tensor& dp) {
    Routed routed(ctx, x, kTopK);
    route(ctx, routed.args(x, {}));
    Tensor dlogits = Tensor::empty(ctx, x.shape(), x.dtype());
    route_backward(ctx, {.d_gate = dg,
                         .d_probs = dp,
                         .logits = x,
                         .topk_idx = routed.ids,
                         .gate = routed.gate,
                         .probs = routed.probs,
                         .options = {},
                         .z_scale = 0.1,
                         .dlogits = dlogits});
    return dlogits;
  };
  const Tensor f32 = backward(one, logits, d_gate, d_probs);
  const Tensor f64 = backward(one, widened(logits), widened(d_gate), widened(d_probs));
  EXPECT_TRUE(all_near(f32, testing::to_doubles(f64), 2e-6, 0.5));
  EXPECT_TRUE(same_bytes(f32, backward(two, logits, d_gate, d_probs)));
}

TEST(CountExperts, CountsAndSkipsNone) {
  Context ctx;
  const Tensor ids = tensor_of<int32_t>(ctx, {3, 2}, {0, 3, -1, 3, 3, 1});
  Guarded counts(ctx, {5}, DType::kI64);
  count_experts(ctx, ids, counts.tensor);
  const std::vector<int64_t> got(counts.tensor.data<int64_t>(), counts.tensor.data<int64_t>() + 5);
  EXPECT_EQ(got, (std::vector<int64_t>{1, 1, 0, 3, 0}));
  EXPECT_TRUE(counts.intact());
  count_experts(ctx, Tensor::empty(ctx, {0, 2}, DType::kI32), counts.tensor);
  for (const int64_t count : counts.tensor.span<int64_t>()) EXPECT_EQ(count, 0);
}

class TokenSums : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, DType>> {};

TEST_P(TokenSums, ColumnSumsAndZLoss) {
  const auto [tokens, experts, dtype] = GetParam();
  Context one, two(Device::kCpu, 2);
  const Tensor x = random_tensor(one, {tokens, experts}, dtype, 9);
  Guarded sums(one, {experts}, DType::kF64);
  column_sums(two, x, sums.tensor);
  std::vector<double> wanted(static_cast<size_t>(experts), 0.0);
  double z_wanted = 0.0;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<double> row = row_of(x, t);
    double sum = 0.0;
    for (size_t e = 0; e < row.size(); ++e) {
      wanted[e] += row[e];
      sum += std::exp(row[e]);
    }
    z_wanted += std::pow(std::log(sum), 2);
  }
  EXPECT_TRUE(all_near(sums.tensor, wanted, 1e-12, 10.0));
  EXPECT_TRUE(sums.intact());
  Tensor alone = Tensor::empty(one, {experts}, DType::kF64);
  column_sums(one, x, alone);
  EXPECT_TRUE(same_bytes(alone, sums.tensor));

  EXPECT_NEAR(z_loss_sum(two, x), z_wanted, tolerance(dtype) * (z_wanted + 1e-6));
  EXPECT_EQ(z_loss_sum(two, x), z_loss_sum(one, x));
}
INSTANTIATE_TEST_SUITE_P(Grid, TokenSums,
                         ::testing::Combine(::testing::Values(0, 1, 17, 2000),
                                            ::testing::Values(1, 8, 61),
                                            ::testing::Values(DType::kF32, DType::kF64)),
                         [](const auto& test) {
                           return str("t", std::get<0>(test.param), "_e", std::get<1>(test.param),
                                      "_", dtype_name(std::get<2>(test.param)));
                         });

TEST(RoutingErrors, NameTensorsAndValues) {
  Context ctx;
  const Tensor logits = Tensor::zeros(ctx, {3, 4}, DType::kF32);
  Routed many(ctx, logits, 5), good(ctx, logits, 2);
  EXPECT_TRUE(throws_with<Error>([&] { route(ctx, many.args(logits, {})); },
                                 {"5 experts per token", "of 4", "[1, 4]"}));
  const Tensor half = Tensor::zeros(ctx, {3, 4}, DType::kBF16);
  EXPECT_TRUE(throws_with<Error>([&] { route(ctx, good.args(half, {})); },
                                 {"logits is bf16", "f32 or f64"}));
  const Tensor fewer = Tensor::zeros(ctx, {2, 4}, DType::kF32);
  EXPECT_TRUE(throws_with<Error>([&] { route(ctx, good.args(fewer, {})); },
                                 {"topk_idx has shape [3, 2]", "[2, 4]"}));
  good.ids.data<int32_t>()[3] = 4;
  EXPECT_TRUE(throws_with<Error>([&] { route_given(ctx, good.args(logits, {})); },
                                 {"expert id 4", "position 3", "[0, 4)"}));
  Tensor counts = Tensor::zeros(ctx, {4}, DType::kI64);
  EXPECT_TRUE(throws_with<Error>([&] { count_experts(ctx, good.ids, counts); },
                                 {"count_experts: expert id 4", "position 3"}));
  EXPECT_TRUE(throws_with<Error>([&] { column_sums(ctx, logits, counts); }, {"sums is i64"}));
}

}  // namespace
}  // namespace spillway::kernels
