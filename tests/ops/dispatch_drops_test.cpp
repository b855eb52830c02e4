// Gradients through a dispatch that drops, for every order of drops, with and without
// renormalised gates; and what a second dispatch of a region must reproduce.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "op_test.h"
#include "spillway/core/choice.h"
#include "spillway/ops/basic.h"
#include "spillway/ops/dispatch.h"
#include "spillway/ops/grouped_linear.h"
#include "spillway/ops/save_names.h"
#include "spillway/ops/swiglu.h"
#include "support/self_session.h"
#include "support/throws.h"

namespace spillway::ops {
namespace {

using plan::DropOrder;
using spillway::testing::expect_holds;
using spillway::testing::SelfSession;

constexpr int64_t kTokens = 5, kTopK = 3, kExperts = 4, kHidden = 4, kWidth = 3;
const std::vector<int32_t> kIds = {0, 2, 1, 1, 0, 3, 2, 1, 3, 2, 0, 1, 0, 1, 3};
// No two within a hundred steps of the differences, rounded to bf16 or not: the kept set does not
// change where the order is by score.
const std::vector<double> kGates = {0.11, 0.83, 0.35, 0.62, 0.27, 0.74, 0.48, 0.91,
                                    0.19, 0.55, 0.31, 0.69, 0.41, 0.15, 0.97};

struct DropCase {
  DropOrder order = DropOrder::kTail;
  bool renormalize = false;
  int64_t alignment = 1;
};

/// Fifteen assignments (4, 5, 3, 3 of the experts) with room for nine, or, aligned to 4, for 16 of
/// 20 slots.
class Drops : public ::testing::TestWithParam<DropCase> {
 protected:
  static ep::EpConfig config() {
    const DropCase& c = GetParam();
    return {.num_experts = kExperts,
            .hidden = kHidden,
            .top_k = kTopK,
            .alignment = c.alignment,
            .dtype = DType::kF64,
            .max_tokens_per_rank = kTokens,
            .recv_capacity_per_rank = {c.alignment == 1 ? 9 : 16},
            .drop_on_overflow = true,
            .drop_order = c.order,
            .drop_seed = 3,
            .renormalize_kept = c.renormalize,
            .poison = true};
  }
  static double gate_sum(const double* gates, int64_t token) {
    return std::accumulate(gates + token * kTopK, gates + (token + 1) * kTopK, 0.0);
  }
  /// The sum of all gates of a token is a constant in backward, so differences must not see it
  /// change: each row's weight times (sum at the start) / (sum now), itself a constant.
  Variable hold_sums(Tape& tape, const DispatchOutput& sent, const Tensor& gate) {
    const Variable& weights = sent.recv_gate;
    Tensor factor = Tensor::zeros(ctx_, weights.shape(), DType::kF64);
    const int32_t* const slot_of = sent.prepare.handle.row_of.data<int32_t>();
    for (int64_t i = 0; i < kTokens * kTopK; ++i) {
      if (slot_of[i] < 0) continue;
      const int64_t t = i / kTopK;
      factor.data<double>()[slot_of[i]] =
          gate_sum(kGates.data(), t) / gate_sum(gate.data<double>(), t);
    }
    // Rows of nobody may hold anything: they become 0 without a product.
    const auto times_factor = [factor](Context& ctx, const Tensor& x) {
      Tensor y = Tensor::zeros(ctx, x.shape(), DType::kF64);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const double f = factor.data<double>()[i];
        if (f != 0.0) y.data<double>()[i] = f * x.data<double>()[i];
      }
      return y;
    };
    return tape.record(
        "hold_sums", times_factor(ctx_, weights.value()), {weights},
        [times_factor](autograd::Backward& b) { b.give(0, times_factor(b.ctx(), b.grad())); });
  }
  Variable layer(Tape& tape, const Inputs& in) {
    const DispatchOutput sent = dispatch(tape, session_.session, {}, in[0], ids_, in[1]);
    const Variable weights =
        GetParam().renormalize ? hold_sums(tape, sent, in[1].value()) : sent.recv_gate;
    const Variable up = grouped_linear(tape, sent.recv_tokens, in[2], sent.zones);
    const Variable act = swiglu(tape, up, weights, sent.zones);
    const Variable out = grouped_linear(tape, act, in[3], sent.zones);
    return combine(tape, session_.session, sent.prepare.handle, {}, out);
  }
  std::vector<OpInput> inputs() {
    return {{.name = "x", .value = x_},
            {.name = "gate", .value = gate_},
            {.name = "up", .value = f64(ctx_, {kExperts, 2 * kWidth, kHidden}, 3)},
            {.name = "down", .value = f64(ctx_, {kExperts, kHidden, kWidth}, 4)}};
  }

  Context ctx_;
  SelfSession session_{ctx_, config()};
  Tensor ids_ = tensor_of<int32_t>(ctx_, {kTokens, kTopK}, kIds);
  Tensor x_ = f64(ctx_, {kTokens, kHidden}, 1);
  Tensor gate_ = tensor_of<double>(ctx_, {kTokens, kTopK}, kGates);
};

TEST_P(Drops, GradientsMatchDifferences) {
  EXPECT_TRUE(op_gradients_match(
      ctx_, [this](Tape& tape, const Inputs& in) { return Inputs{layer(tape, in)}; }, inputs()));
}

TEST_P(Drops, DroppedPairsHaveExactlyNoGradient) {
  const Variable gate = leaf(ctx_, "gate", gate_);
  Tape tape(ctx_);
  const DispatchOutput sent = dispatch(tape, session_.session, {}, Variable(x_), ids_, gate);
  ASSERT_GT(sent.prepare.ledger.dropped_assignments[0], 0);
  const Variable scaled = swiglu(tape, sent.recv_tokens, sent.recv_gate, sent.zones);
  tape.backward(scaled, f64(ctx_, scaled.shape(), 5));
  for (int64_t t = 0; t < kTokens; ++t) {
    const int32_t* const row_of = sent.prepare.handle.row_of.data<int32_t>() + t * kTopK;
    const double* const d_gate = gate.grad().data<double>() + t * kTopK;
    // A renormalised weight that is alone is the constant S_all, whatever its gate.
    const bool alone = GetParam().renormalize && std::count(row_of, row_of + kTopK, -1) == 2;
    for (int64_t k = 0; k < kTopK; ++k) {
      const bool dropped = row_of[k] == -1;
      if (dropped) {
        EXPECT_EQ(d_gate[k], 0.0) << t << "," << k;
      } else if (!alone) {
        EXPECT_NE(d_gate[k], 0.0) << t << "," << k;
      }
    }
  }
}

class RenormalizedDrops : public Drops {};

TEST_P(RenormalizedDrops, WeightsOfATokenThatKeepsSomethingSumUpToAll) {
  constexpr double kRounding = 1e-15;  // of a product and a quotient near 1
  Tape tape(ctx_, false);
  const DispatchOutput sent =
      dispatch(tape, session_.session, {}, Variable(x_), ids_, Variable(gate_));
  int64_t changed = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    double sum = 0.0;
    int64_t kept = 0;
    for (int64_t k = 0; k < kTopK; ++k) {
      const int64_t slot = sent.prepare.handle.row_of.data<int32_t>()[t * kTopK + k];
      if (slot < 0) continue;
      ++kept;
      sum += sent.recv_gate.value().data<double>()[slot];
    }
    changed += kept == 1 || kept == 2 ? 1 : 0;
    if (kept > 0) {
      EXPECT_NEAR(sum, gate_sum(kGates.data(), t), kRounding) << "token " << t;
    }
  }
  EXPECT_GT(changed, 0) << "no token lost a part";
}

TEST_P(Drops, ComputedAgainGivesTheSameBits) {
  const auto run = [this](bool with_region, std::vector<std::string> save) {
    std::vector<Variable> leaves;
    for (const OpInput& input : inputs()) leaves.push_back(leaf(ctx_, input.name, input.value));
    Tape tape(ctx_);
    const auto body = [&](const Variable& x) {
      return Inputs{layer(tape, {x, leaves[1], leaves[2], leaves[3]})};
    };
    const Inputs y =
        with_region ? tape.region({.save = std::move(save)}, leaves[0], body) : body(leaves[0]);
    tape.backward(y.front(), f64(ctx_, {kTokens, kHidden}, 6));
    std::vector<Tensor> gradients;
    for (const Variable& variable : leaves) gradients.push_back(variable.grad().clone(ctx_));
    return gradients;
  };
  const std::vector<Tensor> plain = run(false, {});
  for (const std::vector<std::string>& save :
       {std::vector<std::string>{}, std::vector<std::string>{"dispatch"}}) {
    const std::vector<Tensor> again = run(true, save);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same_bytes(plain[i], again[i])) << i;
  }
}

std::vector<DropCase> drop_cases(std::vector<bool> renormalized) {
  std::vector<DropCase> cases;
  for (const auto& [name, order] : plan::kDropOrderChoices) {
    for (const bool renormalize : renormalized) {
      for (const int64_t alignment : {1, 4}) cases.push_back({order, renormalize, alignment});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<DropCase>& test) {
  const DropCase& c = test.param;
  return std::string(choice_name(plan::kDropOrderChoices, c.order)) +
         (c.renormalize ? "_renormalized" : "") + "_" + std::to_string(c.alignment);
}
INSTANTIATE_TEST_SUITE_P(, Drops, ::testing::ValuesIn(drop_cases({false, true})), case_name);
INSTANTIATE_TEST_SUITE_P(, RenormalizedDrops, ::testing::ValuesIn(drop_cases({true})), case_name);

/// A region whose second dispatch is not the first one.
class OtherSecondDispatch : public ::testing::Test {
 protected:
  static ep::EpConfig config(bool poison) {
    return {.num_experts = kExperts,
            .hidden = kHidden,
            .top_k = kTopK,
            .dtype = DType::kF64,
            .max_tokens_per_rank = kTokens,
            .poison = poison};
  }
  /// Runs a region forward and backward; `between` comes after its forward.
  void run(bool poison, const std::vector<std::string>& save,
           const std::function<void()>& between) {
    SelfSession self(ctx_, config(poison));
    const Variable x = leaf(ctx_, "x", f64(ctx_, {kTokens, kHidden}, 1));
    const Variable gate{tensor_of<double>(ctx_, {kTokens, kTopK}, kGates)};
    Tape tape(ctx_);
    const Inputs y = tape.region({.save = save}, x, [&](const Variable& in) {
      const DispatchOutput sent = dispatch(tape, self.session, {.call = call_}, in, ids_, gate);
      handle_bytes_ = sent.prepare.handle.bytes();
      return Inputs{combine(tape, self.session, sent.prepare.handle, call_, sent.recv_tokens)};
    });
    saved_ = tape.saved_bytes();
    between();
    tape.backward(y.front(), f64(ctx_, {kTokens, kHidden}, 3));
    for (const auto& [name, use] : tape.saved_bytes()) EXPECT_EQ(use.current_bytes, 0) << name;
  }
  std::string refusal(bool poison, const std::function<void()>& between) {
    try {
      run(poison, {}, between);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void swap_experts_of_first_token() {
    int32_t* const ids = ids_.data<int32_t>();
    std::swap(ids[0], ids[1]);
  }

  Context ctx_;
  ep::Call call_{.step = 7};
  Tensor ids_ = tensor_of<int32_t>(ctx_, {kTokens, kTopK}, kIds);
  autograd::SavedBytes saved_;
  int64_t handle_bytes_ = 0;
};

TEST_F(OtherSecondDispatch, IsAnErrorNamingTheFieldAndBothValues) {
  expect_holds(refusal(false, [this] { call_.step = 8; }),
               {"recomputed dispatch", "step is 8", "first one 7"});
  call_.step = 7;
  expect_holds(refusal(false, [this] { call_.micro_batch = 2; }),
               {"recomputed dispatch", "micro_batch is 2", "first one 0"});
}

TEST_F(OtherSecondDispatch, WithOtherMapsIsAnErrorInDebugMode) {
  expect_holds(refusal(true, [this] { swap_experts_of_first_token(); }),
               {"recomputed dispatch", "maps_checksum is "});
  EXPECT_EQ(refusal(false, [this] { swap_experts_of_first_token(); }), "")
      << "the header alone does not tell";
}

TEST_F(OtherSecondDispatch, DoesNotHappenWhenTheDispatchIsSaved) {
  EXPECT_NO_THROW(run(true, {"dispatch"}, [this] { swap_experts_of_first_token(); }));
}

TEST_F(OtherSecondDispatch, SavedDispatchHoldsRowsGatesHandleAndCounts) {
  run(false, {"dispatch"}, [] {});
  constexpr int64_t kSlots = kTokens * kTopK, kDouble = 8, kInt = 8;
  EXPECT_EQ(saved_.at("dispatch").current_bytes,
            kSlots * (kHidden + 1) * kDouble + handle_bytes_ + 2 * kExperts * kInt);
  EXPECT_EQ(saved_.at("routing").current_bytes, static_cast<int64_t>(sizeof(ep::HandleHeader)));
  run(false, {}, [] {});
  EXPECT_EQ(saved_.count("dispatch"), 0U);
}

}  // namespace
}  // namespace spillway::ops
