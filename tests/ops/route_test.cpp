#include "spillway/ops/route.h"

#include <gtest/gtest.h>

#include <numeric>

#include "op_test.h"
#include "spillway/ops/basic.h"

namespace spillway::ops {
namespace {

/// Each token ranks the experts differently, 0.3 apart: no choice changes within a difference step
/// of 1e-5.
Tensor separated_logits(Context& ctx, int64_t num_tokens, int64_t num_experts) {
  constexpr double kGap = 0.3;
  Tensor logits = Tensor::empty(ctx, {num_tokens, num_experts}, DType::kF64);
  Rng rng(7);
  std::vector<int64_t> place(static_cast<size_t>(num_experts));
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::iota(place.begin(), place.end(), 0);
    for (size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[rng.below(i)]);
    for (int64_t e = 0; e < num_experts; ++e) {
      logits.data<double>()[t * num_experts + e] =
          kGap * static_cast<double>(place[static_cast<size_t>(e)]) + 0.05 * rng.uniform();
    }
  }
  return logits;
}

constexpr int64_t kExperts = 5;
constexpr int64_t kTokens = 7;

enum class Part { kGate, kAux, kZ, kAll };

/// before, normalize, scale, top_k, forced.
using RouteCase = std::tuple<bool, bool, double, int64_t, bool>;
class RouteGradient : public ::testing::TestWithParam<RouteCase> {
 protected:
  static RouteOptions options() {
    const auto& [before, normalize, scale, top_k, forced] = GetParam();
    return {.routing = {.softmax_before_topk = before, .normalize_topk = normalize, .scale = scale},
            .top_k = top_k,
            .force_balanced = forced,
            .cell_scale = 0.5,
            .token_scale = 0.25};
  }
  /// The weights of a token are a constant: one weight that is a softmax over itself.
  static bool constant_gate() {
    const auto& [before, normalize, scale, top_k, forced] = GetParam();
    return top_k == 1 && !before;
  }
  /// Every token has all experts: the balance loss is 1 whatever the logits are.
  static bool constant_aux() { return std::get<3>(GetParam()) == kExperts; }

  Context ctx_;
  Tensor logits_ = separated_logits(ctx_, kTokens, kExperts);
};

OpInput logits_input(const Tensor& logits, bool zero = false) {
  return {.name = "logits", .value = logits, .zero = zero};
}

TEST_P(RouteGradient, OfWeightsAndBothLossesMatchesDifferences) {
  EXPECT_TRUE(op_gradients_match(ctx_,
                                 [](Tape& tape, const Inputs& in) {
                                   const RouteResult r = route(tape, in[0], options());
                                   return Inputs{r.gate, r.aux_loss, r.z_loss};
                                 },
                                 {logits_input(logits_)}));
}

TEST_P(RouteGradient, OfTheWeightsMatchesDifferences) {
  // Exactly zero is what a constant gives only up to rounding of w - sum w w: compare there.
  if (constant_gate()) {
    Tape tape(ctx_);
    const Variable x = leaf(ctx_, "logits", logits_);
    const RouteResult r = route(tape, x, options());
    tape.backward(r.gate, f64(ctx_, r.gate.shape(), 3));
    for (const double g : x.grad().span<double>()) EXPECT_NEAR(g, 0.0, 1e-15);
    return;
  }
  EXPECT_TRUE(op_gradients_match(
      ctx_, [](Tape& tape, const Inputs& in) { return Inputs{route(tape, in[0], options()).gate}; },
      {logits_input(logits_)}));
}

TEST_P(RouteGradient, TheChoiceIsTheLargestLogits) {
  Tape tape(ctx_, false);
  const RouteResult r = route(tape, Variable(logits_), options());
  const auto& [before, normalize, scale, top_k, forced] = GetParam();
  for (int64_t t = 0; t < kTokens; ++t) {
    const double* const row = logits_.data<double>() + t * kExperts;
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [row](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t wanted =
          forced ? static_cast<int32_t>((t * top_k + k) % kExperts) : order[static_cast<size_t>(k)];
      EXPECT_EQ(r.topk_idx.data<int32_t>()[t * top_k + k], wanted) << "token " << t;
    }
  }
}

std::string route_label(const ::testing::TestParamInfo<RouteCase>& info) {
  const auto& [before, normalize, scale, top_k, forced] = info.param;
  return str(before ? "before" : "after", normalize ? "_normalized" : "_plain",
             scale == 1.0 ? "" : "_scaled", "_k", top_k, forced ? "_forced" : "");
}

INSTANTIATE_TEST_SUITE_P(, RouteGradient,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(1.0, 2.5),
                                            ::testing::Values(1, 2, kExperts), ::testing::Bool()),
                         route_label);

struct PartCase {
  const char* label;
  int64_t tokens, experts, top_k;
  Part part;
  bool zero = false;
};
class RoutePart : public ::testing::TestWithParam<PartCase> {};

TEST_P(RoutePart, AloneMatchesDifferences) {
  Context ctx;
  const auto& c = GetParam();
  const Tensor logits = separated_logits(ctx, c.tokens, c.experts);
  EXPECT_TRUE(op_gradients_match(ctx,
                                 [&c](Tape& tape, const Inputs& in) {
                                   const RouteResult r = route(
                                       tape, in[0],
                                       {.top_k = c.top_k, .cell_scale = 0.5, .token_scale = 0.25});
                                   if (c.part == Part::kAux) return Inputs{r.aux_loss};
                                   if (c.part == Part::kZ) return Inputs{r.z_loss};
                                   return Inputs{r.gate, r.aux_loss, r.z_loss};
                                 },
                                 {logits_input(logits, c.zero)}));
}

INSTANTIATE_TEST_SUITE_P(, RoutePart,
                         ::testing::Values(PartCase{"aux", 7, 5, 2, Part::kAux},
                                           PartCase{"aux_k1", 3, 4, 1, Part::kAux},
                                           PartCase{"aux_one_token", 1, 3, 2, Part::kAux},
                                           PartCase{"z", 7, 5, 2, Part::kZ},
                                           PartCase{"z_one_token", 1, 3, 1, Part::kZ},
                                           PartCase{"z_one_expert", 4, 1, 1, Part::kZ},
                                           PartCase{"no_tokens", 0, 5, 2, Part::kAll, true},
                                           PartCase{"many_experts", 3, 33, 8, Part::kAll}),
                         kLabel);

class RouteLosses : public ::testing::Test {
 protected:
  RouteResult routed(const Tensor& logits, RouteOptions options) {
    Tape tape(ctx_, false);
    return route(tape, Variable(logits), options);
  }
  Context ctx_;
};

TEST_F(RouteLosses, NoTokensGiveZero) {
  const RouteResult r = routed(Tensor::zeros(ctx_, {0, 4}, DType::kF32), {.top_k = 2});
  EXPECT_EQ(scalar_value(r.aux_loss.value()), 0.0);
  EXPECT_EQ(scalar_value(r.z_loss.value()), 0.0);
  EXPECT_EQ(r.gate.shape(), (Shape{0, 2}));
}

TEST_F(RouteLosses, TheBalanceLossIsOneWhenBalanced) {
  constexpr double kRounding = 1e-6;  // probabilities are f32
  // Forced counts are equal, and then the mean probabilities do not matter.
  const Tensor logits = random_tensor(ctx_, {8, 4}, DType::kF32, 1);
  const RouteResult r = routed(logits, {.top_k = 2, .force_balanced = true});
  EXPECT_NEAR(scalar_value(r.aux_loss.value()), 1.0, kRounding);
}

TEST_F(RouteLosses, TheBalanceLossIsEOverKWhenOneExpertGetsAll) {
  Tensor logits = Tensor::zeros(ctx_, {6, 4}, DType::kF64);
  for (int64_t t = 0; t < 6; ++t) logits.data<double>()[t * 4 + 2] = 60.0;
  const RouteResult r = routed(logits, {.top_k = 1, .cell_scale = 0.5});
  EXPECT_NEAR(scalar_value(r.aux_loss.value()), 0.5 * 4.0, 1e-12);
}

TEST_F(RouteLosses, TheZLossIsTheScaledSumOfSquaredLogSums) {
  const Tensor logits = Tensor::zeros(ctx_, {3, 4}, DType::kF64);
  const RouteResult r = routed(logits, {.top_k = 1, .token_scale = 0.1});
  EXPECT_NEAR(scalar_value(r.z_loss.value()), 0.1 * 3.0 * std::log(4.0) * std::log(4.0), 1e-14);
}

TEST_F(RouteLosses, TiesGoToTheLowerId) {
  const RouteResult r = routed(Tensor::zeros(ctx_, {2, 5}, DType::kF32), {.top_k = 3});
  const auto ids = r.topk_idx.span<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.end()), (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
}

/// A region must not choose again: a second run with other logits keeps the first choice.
TEST_F(RouteLosses, ARegionKeepsTheChoice) {
  Tape tape(ctx_);
  std::vector<int32_t> chosen;
  const Variable x = leaf(ctx_, "x", separated_logits(ctx_, 1, 4));
  const auto y = tape.region({}, x, [&](const Variable& in) {
    Variable logits = in;
    if (tape.recomputing()) logits = Variable(Tensor::zeros(ctx_, {1, 4}, DType::kF64));
    const RouteResult r = route(tape, logits, {.top_k = 2});
    for (const int32_t id : r.topk_idx.span<int32_t>()) chosen.push_back(id);
    return Inputs{add(tape, r.gate, reshape(tape, r.gate, r.gate.shape()))};
  });
  tape.backward(y.front(), f64(ctx_, {1, 2}, 1));
  ASSERT_EQ(chosen.size(), 4U);
  EXPECT_EQ(chosen[0], chosen[2]);
  EXPECT_EQ(chosen[1], chosen[3]);
  EXPECT_NE(chosen, (std::vector<int32_t>{0, 1, 0, 1}));
}

/// The weights of a choice that was kept have the bits of the first run.
class RouteRegion : public RouteGradient {};

TEST_P(RouteRegion, GivesTheBitsOfAPlainRun) {
  std::vector<Tensor> gradients, gates;
  for (const bool with_region : {false, true}) {
    Tape tape(ctx_);
    const Variable x = leaf(ctx_, "x", logits_);
    const auto body = [&](const Variable& in) {
      const RouteResult r = route(tape, in, options());
      gates.push_back(r.gate.value());
      return Inputs{r.gate, r.aux_loss, r.z_loss};
    };
    const Inputs y = with_region ? tape.region({}, x, body) : body(x);
    tape.backward(spillway::testing::detail::contract(tape, y, {}));
    gradients.push_back(x.grad());
  }
  EXPECT_TRUE(same_bytes(gradients[0], gradients[1]));
  ASSERT_EQ(gates.size(), 3U);
  EXPECT_TRUE(same_bytes(gates[0], gates[1]) && same_bytes(gates[0], gates[2]));
}

INSTANTIATE_TEST_SUITE_P(, RouteRegion,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(2.5), ::testing::Values(2),
                                            ::testing::Bool()),
                         route_label);

}  // namespace
}  // namespace spillway::ops
