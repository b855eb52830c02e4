#include "spillway/ops/dispatch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "op_test.h"
#include "spillway/ops/basic.h"
#include "spillway/ops/grouped_linear.h"
#include "spillway/ops/swiglu.h"
#include "support/self_session.h"

namespace spillway::ops {
namespace {

using spillway::testing::SelfSession;

constexpr int64_t kHidden = 4;
constexpr int64_t kWidth = 3;

struct DispatchCase {
  const char* label;
  int64_t tokens, experts, top_k, alignment;
  std::vector<int32_t> ids;  ///< [T,K]
  bool fused = false;
  int64_t capacity = 0;  ///< 0: room for all; else drop beyond it
};

const std::vector<int32_t> kMixed = {0, 2, 1, 0, 2, 1, 2, 0, 0, 1};  // of 3 experts

class Dispatch : public ::testing::TestWithParam<DispatchCase> {
 protected:
  static ep::EpConfig config() {
    const auto& c = GetParam();
    ep::EpConfig config{.num_experts = c.experts,
                        .hidden = kHidden,
                        .top_k = c.top_k,
                        .alignment = c.alignment,
                        .dtype = DType::kF64,
                        .max_tokens_per_rank = std::max<int64_t>(c.tokens, 1),
                        .drop_on_overflow = c.capacity > 0,
                        .poison = true};
    if (c.capacity > 0) config.recv_capacity_per_rank = {c.capacity};
    return config;
  }
  DispatchOutput send(Tape& tape, const Variable& x, const Variable& gate) {
    return dispatch(tape, session_.session, {.fused = GetParam().fused}, x, ids_, gate);
  }
  /// Dispatch, the experts' network, combine.
  Variable layer(Tape& tape, const Inputs& in) {
    const DispatchOutput sent = send(tape, in[0], in[1]);
    const Variable up = grouped_linear(tape, sent.recv_tokens, in[2], sent.zones);
    const Variable act = swiglu(tape, up, sent.recv_gate, sent.zones);
    const Variable out = grouped_linear(tape, act, in[3], sent.zones);
    return combine(tape, session_.session, sent.prepare.handle, {}, out);
  }
  ep::PrepareResult prepared() {
    return session_.session.prepare({.topk_idx = ids_, .gate = gate_});
  }
  std::vector<bool> used_slots() {
    const ep::PrepareResult p = prepared();
    std::vector<bool> used(static_cast<size_t>(p.handle.header.capacity), false);
    for (size_t e = 0; e < p.token_counts.size(); ++e) {
      std::fill_n(used.begin() + p.handle.zone_begin[e], p.token_counts[e], true);
    }
    return used;
  }
  bool nothing_sent() {
    const auto used = used_slots();
    return std::find(used.begin(), used.end(), true) == used.end();
  }
  std::vector<OpInput> inputs() {
    const auto& c = GetParam();
    const bool zero = nothing_sent();
    return {{.name = "x", .value = x_, .zero = zero},
            {.name = "gate", .value = gate_, .zero = zero},
            {.name = "up", .value = f64(ctx_, {c.experts, 2 * kWidth, kHidden}, 3), .zero = zero},
            {.name = "down", .value = f64(ctx_, {c.experts, kHidden, kWidth}, 4), .zero = zero}};
  }

  Context ctx_;
  SelfSession session_{ctx_, config()};
  Tensor ids_ = tensor_of<int32_t>(ctx_, {GetParam().tokens, GetParam().top_k}, GetParam().ids);
  Tensor x_ = f64(ctx_, {GetParam().tokens, kHidden}, 1);
  Tensor gate_ = f64(ctx_, {GetParam().tokens, GetParam().top_k}, 2);
};

TEST_P(Dispatch, AndExpertsAndCombineMatchDifferences) {
  EXPECT_TRUE(op_gradients_match(
      ctx_, [this](Tape& tape, const Inputs& in) { return Inputs{layer(tape, in)}; }, inputs()));
}

TEST_P(Dispatch, OfRowsAloneMatchesDifferences) {
  const auto used = used_slots();
  EXPECT_TRUE(op_gradients_match(
      ctx_,
      [this](Tape& tape, const Inputs& in) { return Inputs{send(tape, in[0], in[1]).recv_tokens}; },
      {{.name = "x", .value = x_, .zero = nothing_sent()},
       {.name = "gate", .value = gate_, .zero = true}},
      {used}));
}

TEST_P(Dispatch, OfGatesAloneMatchesDifferences) {
  const auto used = used_slots();
  EXPECT_TRUE(op_gradients_match(
      ctx_,
      [this](Tape& tape, const Inputs& in) { return Inputs{send(tape, in[0], in[1]).recv_gate}; },
      {{.name = "x", .value = x_, .zero = true},
       {.name = "gate", .value = gate_, .zero = nothing_sent()}},
      {used}));
}

TEST_P(Dispatch, CombineAloneMatchesDifferences) {
  const auto used = used_slots();
  const ep::PrepareResult p = prepared();
  Tensor expert_out = f64(ctx_, {p.handle.header.capacity, kHidden}, 5);
  // An expert may leave anything in rows that are not its own.
  for (int64_t i = 0; i < expert_out.numel(); ++i) {
    if (!used[static_cast<size_t>(i / kHidden)]) expert_out.data<double>()[i] = std::nan("");
  }
  EXPECT_TRUE(op_gradients_match(ctx_,
                                 [&](Tape& tape, const Inputs& in) {
                                   return Inputs{
                                       combine(tape, session_.session, p.handle, {}, in[0])};
                                 },
                                 {{"expert_out", expert_out, used, nothing_sent()}}));
}

INSTANTIATE_TEST_SUITE_P(
    , Dispatch,
    ::testing::Values(DispatchCase{"mixed", 5, 3, 2, 1, kMixed},
                      DispatchCase{"aligned", 5, 3, 2, 4, kMixed},
                      DispatchCase{"fused", 5, 3, 2, 4, kMixed, true},
                      DispatchCase{"no_tokens", 0, 3, 2, 1, {}},
                      DispatchCase{"one_token", 1, 2, 1, 8, {1}},
                      DispatchCase{"an_empty_expert", 3, 4, 1, 2, {0, 3, 0}},
                      DispatchCase{"all_experts", 2, 3, 3, 1, {0, 1, 2, 2, 1, 0}},
                      DispatchCase{"entries_of_none", 4, 3, 2, 1, {-1, 2, 1, -1, -1, -1, 0, 1}},
                      DispatchCase{"nobody_chose", 2, 2, 1, 1, {-1, -1}},
                      DispatchCase{"dropping", 5, 3, 2, 1, kMixed, false, 6},
                      DispatchCase{"dropping_aligned", 5, 3, 2, 4, kMixed, false, 8},
                      DispatchCase{"dropping_all_but_one", 5, 3, 2, 1, kMixed, true, 1}),
    kLabel);

/// Ten assignments to three experts (4, 3, 3) with room for six.
class DroppingLayer : public ::testing::Test {
 protected:
  static ep::EpConfig config() {
    return {.num_experts = 3,
            .hidden = kHidden,
            .top_k = 2,
            .dtype = DType::kF64,
            .max_tokens_per_rank = 5,
            .recv_capacity_per_rank = {6},
            .drop_on_overflow = true};
  }
  Context ctx_;
  SelfSession session_{ctx_, config()};
  Tensor ids_ = tensor_of<int32_t>(ctx_, {5, 2}, kMixed);
  Variable x_ = leaf(ctx_, "x", f64(ctx_, {5, kHidden}, 1));
  Variable gate_ = leaf(ctx_, "gate", f64(ctx_, {5, 2}, 2));
};

TEST_F(DroppingLayer, DroppedPairsHaveExactlyNoGradient) {
  Tape tape(ctx_);
  const DispatchOutput sent = dispatch(tape, session_.session, {}, x_, ids_, gate_);
  ASSERT_GT(sent.prepare.ledger.dropped_assignments[0], 0);
  const Variable scaled = swiglu(tape, sent.recv_tokens, sent.recv_gate, sent.zones);
  tape.backward(scaled, f64(ctx_, scaled.shape(), 3));
  int64_t zeros = 0;
  for (int64_t i = 0; i < 10; ++i) {
    const bool dropped = sent.prepare.handle.row_of.data<int32_t>()[i] == -1;
    EXPECT_EQ(gate_.grad().data<double>()[i] == 0.0, dropped) << "pair " << i;
    zeros += dropped ? 1 : 0;
  }
  EXPECT_EQ(zeros, sent.prepare.ledger.dropped_assignments[0]);
}

/// `between` runs after forward: what a later micro-batch may do to the session.
class RecomputedDispatch : public DroppingLayer, public ::testing::WithParamInterface<bool> {
 protected:
  struct Run {
    Tensor dx, d_gate;
    std::vector<int64_t> capacities;
    CounterSet total, backward;
  };
  Run run(bool with_region, const std::function<void()>& between) {
    x_.grad().zero();
    gate_.grad().zero();
    ctx_.counters().reset();
    Run result;
    Tape tape(ctx_);
    std::vector<std::string> save;
    if (GetParam()) save.emplace_back("dispatch");
    const auto body = [&](const Variable& x) {
      const DispatchOutput sent = dispatch(tape, session_.session, {}, x, ids_, gate_);
      result.capacities.push_back(sent.prepare.handle.header.capacity);
      const Variable rows = add(tape, sent.recv_tokens, sent.recv_tokens);
      const Variable y = combine(tape, session_.session, sent.prepare.handle, {}, rows);
      EXPECT_EQ(y.has_value(), !tape.recomputing());
      return Inputs{add(tape, x, y), sent.recv_gate};
    };
    const Inputs y = with_region ? tape.region({.save = save}, x_, body) : body(x_);
    between();
    tape.backward(y.front(), f64(ctx_, {5, kHidden}, 3));
    result.dx = x_.grad().clone(ctx_);
    result.d_gate = gate_.grad().clone(ctx_);
    result.total = ctx_.counters().total();
    result.backward = ctx_.counters().backward();
    return result;
  }
};

TEST_P(RecomputedDispatch, GivesTheBitsOfAPlainRun) {
  const Run plain = run(false, [] {});
  const Run again = run(true, [] {});
  EXPECT_TRUE(same_bytes(plain.dx, again.dx));
  EXPECT_TRUE(same_bytes(plain.d_gate, again.d_gate));
}

TEST_P(RecomputedDispatch, NeverRepeatsTheCombine) {
  const bool saved = GetParam();
  const CounterSet plain{
      .prepares = 1, .forward_dispatches = 1, .combines = 1, .backward_transports = 2};
  EXPECT_EQ(run(false, [] {}).total, plain);
  const Run again = run(true, [] {});
  const int64_t extra = saved ? 0 : 1;
  EXPECT_EQ(again.total, (CounterSet{.prepares = 1 + extra,
                                     .forward_dispatches = 1 + extra,
                                     .combines = 1,
                                     .backward_transports = 2}));
  EXPECT_EQ(again.backward,
            (CounterSet{.prepares = extra, .forward_dispatches = extra, .backward_transports = 2}));
}

TEST_P(RecomputedDispatch, HasTheCapacityOfTheFirstRun) {
  const Run plain = run(false, [] {});
  // The layer grows between forward and backward: the second run must drop what the first did.
  const Run again = run(true, [this] { session_.session.raise_capacity(0, 10); });
  ASSERT_EQ(session_.session.capacity(0), 10);
  EXPECT_EQ(again.capacities, (std::vector<int64_t>{6, 6}));
  EXPECT_TRUE(same_bytes(plain.dx, again.dx));
  // Without the region's memory of it the result would differ.
  const Run grown = run(false, [] {});
  EXPECT_EQ(grown.capacities, (std::vector<int64_t>{10}));
  EXPECT_FALSE(same_bytes(plain.dx, grown.dx));
}

INSTANTIATE_TEST_SUITE_P(, RecomputedDispatch, ::testing::Bool(), [](const auto& param) {
  return param.param ? "saved" : "computed_again";
});

TEST(GrowingLayer, IsComputedAgainWithTheGrownCapacity) {
  Context ctx;
  SelfSession self(ctx, {.num_experts = 3,
                         .hidden = kHidden,
                         .top_k = 2,
                         .dtype = DType::kF64,
                         .max_tokens_per_rank = 5,
                         .recv_capacity_per_rank = {6},
                         .grow_on_overflow = true});
  const Tensor ids = tensor_of<int32_t>(ctx, {5, 2}, kMixed);
  const Variable gate{f64(ctx, {5, 2}, 2)};
  const Variable x = leaf(ctx, "x", f64(ctx, {5, kHidden}, 1));
  std::vector<int64_t> capacities;
  Tape tape(ctx);
  const Inputs y = tape.region({}, x, [&](const Variable& in) {
    const DispatchOutput sent = dispatch(tape, self.session, {}, in, ids, gate);
    capacities.push_back(sent.prepare.handle.header.capacity);
    return Inputs{combine(tape, self.session, sent.prepare.handle, {}, sent.recv_tokens)};
  });
  self.session.raise_capacity(0, 30);
  const Tensor ones = tensor_of<double>(ctx, {5, kHidden}, std::vector<double>(5 * kHidden, 1.0));
  tape.backward(y.front(), ones);
  EXPECT_EQ(capacities, (std::vector<int64_t>{10, 10}));
  // Nothing was lost: every token's row went out and back twice.
  for (const double g : x.grad().span<double>()) EXPECT_EQ(g, 2.0);
}

}  // namespace
}  // namespace spillway::ops
