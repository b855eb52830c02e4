// Backward by finite differences through drops, in double: the loss is a weighted sum of
// combine(expert(dispatch)) with a nonlinear expert of its own for each number. An expert works row
// by row, so a token's output depends on that token alone: all tokens are perturbed at once.
#include "distributed/ep/property_check.h"

#include "spillway/core/choice.h"

namespace spillway::ep::test {
namespace {

// A central difference errs by step^2 times the third derivative (order 1 here) and by
// 1e-16 / step of rounding: both below 1e-8 of values of order 1.
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-7;

constexpr int64_t kColumns = 3;

using Values = std::vector<double>;

struct Layer {
  Tensor tokens;  // [T,H]
  Tensor gate;    // [T,K]
};

using Case = std::tuple<plan::DropOrder, bool>;

class Gradient : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    w_ = std::make_unique<World>(World::size());  // one group: groups do not meet here
    case_.config = make_config(ep(), 3, ep() > 2 ? 4 : 1, DType::kF64);
    case_.config.hidden = kColumns;
    case_.config.drop_order = std::get<0>(GetParam());
    case_.config.drop_seed = 5;
    case_.config.drop_on_overflow = true;
    case_.gate_dtype = DType::kF64;
    case_.call = {.layer = 0, .micro_batch = 1, .step = 3};
    // Another T on every rank; rank 1 has none.
    for (int rank = 0; rank < w_->world->size(); ++rank) {
      case_.num_tokens.push_back(rank == 1 ? 0 : 7 + 3 * rank % 8);
    }
    draw();
    case_.config.recv_capacity_per_rank = {
        round_down(demand_of(sources_, case_.config, 0) / 2, case_.config.alignment)};
    truth_ = make_truth(sources_, case_.config, case_.call, capacity());
    mark_kept();
    plain_ = case_.config;
    case_.config.renormalize_kept = renormalize();
    w_->session.bootstrap(case_.config);
  }

  int ep() const { return w_->topology.ep(); }
  static bool renormalize() { return std::get<1>(GetParam()); }
  int64_t capacity() const { return case_.config.recv_capacity_per_rank[0]; }
  int64_t num_tokens() const { return case_.num_tokens[static_cast<size_t>(w_->rank())]; }
  int64_t top_k() const { return case_.config.top_k; }
  const RankTruth& here() const { return truth_[static_cast<size_t>(w_->topology.ep_rank())]; }

  // Experts of low number are chosen more often. No gate is within kStep of where its rounding to
  // bf16 changes: a perturbed one changes no order.
  void draw() {
    Rng rng(21, static_cast<uint64_t>(w_->rank()));
    std::vector<Choice> mine;
    for (int64_t t = 0; t < num_tokens(); ++t) {
      std::vector<int64_t> experts(static_cast<size_t>(kExperts));
      std::iota(experts.begin(), experts.end(), 0);
      for (int64_t k = 0; k < top_k(); ++k) {
        const auto at = static_cast<size_t>(k);
        const double u = rng.uniform();
        const auto pick = at + static_cast<size_t>(u * u * static_cast<double>(kExperts - k));
        std::swap(experts[at], experts[pick]);
        const bool none = rng.below(9) == 0;
        mine.push_back({none ? -1 : experts[at], 0.3 + 0.05 * static_cast<double>(rng.below(12))});
      }
    }
    sources_ = gather_choices(w_->topology.ep_group(), mine, case_.config);
    start_.gate = batch_of(*w_, case_, mine).gate;
    topk_idx_ = batch_of(*w_, case_, mine).topk_idx;
    start_.tokens = fill(w_->ctx, {num_tokens(), kColumns}, DType::kF64,
                         [&](int64_t, int64_t) { return rng.normal(); });
    weight_ = fill(w_->ctx, {num_tokens(), kColumns}, DType::kF64,
                   [&](int64_t, int64_t) { return rng.normal(); });
  }

  // kept_ and routed_ [T*K] of this rank, kept_anywhere_ [T].
  void mark_kept() {
    routed_.assign(static_cast<size_t>(num_tokens() * top_k()), false);
    kept_ = routed_;
    for (const RankTruth& rank : truth_) {
      for (const RoutedRow& row : rank.rows) {
        if (row.source != w_->topology.ep_rank()) continue;
        const auto index = static_cast<size_t>(row.t * top_k() + row.k);
        routed_[index] = true;
        kept_[index] = row.kept;
      }
    }
  }

  PrepareResult prepare(Session& session, const Tensor& gate) {
    return session.prepare({.call = case_.call, .topk_idx = topk_idx_, .gate = gate});
  }

  // y[h] = g^2 (x[h] (1 + e/8) + sin(x[h] x[h+1] + e)); e global. f(row, e) for each kept row.
  template <typename F>
  void for_kept_slots(F&& f) const {
    const int64_t first = w_->topology.ep_rank() * (kExperts / ep());
    for (const RoutedRow& row : here().rows) {
      if (row.kept) f(row.slot, static_cast<double>(first + row.local_expert));
    }
  }
  Tensor expert(const DispatchResult& sent) const {
    Tensor y = fill(w_->ctx, sent.recv_tokens.shape(), DType::kF64,
                    [](int64_t, int64_t) { return std::nan(""); });
    for_kept_slots([&](int64_t slot, double e) {
      const double* x = sent.recv_tokens.data<double>() + slot * kColumns;
      const double g = sent.recv_gate.data<double>()[slot];
      for (int64_t h = 0; h < kColumns; ++h) {
        const double turned = std::sin(x[h] * x[(h + 1) % kColumns] + e);
        y.data<double>()[slot * kColumns + h] = g * g * (x[h] * (1 + e / 8) + turned);
      }
    });
    return y;
  }
  // Gradients of rows and gates; NaN where nobody may read.
  DispatchResult expert_backward(const DispatchResult& sent, const Tensor& dy) const {
    const auto nan = [](int64_t, int64_t) { return std::nan(""); };
    DispatchResult d{fill(w_->ctx, dy.shape(), DType::kF64, nan),
                     fill(w_->ctx, {capacity()}, DType::kF64, nan)};
    for_kept_slots([&](int64_t slot, double e) {
      const double* x = sent.recv_tokens.data<double>() + slot * kColumns;
      const double* dy_row = dy.data<double>() + slot * kColumns;
      double* dx = d.recv_tokens.data<double>() + slot * kColumns;
      const double g = sent.recv_gate.data<double>()[slot];
      double dg = 0.0;
      std::fill_n(dx, kColumns, 0.0);
      for (int64_t h = 0; h < kColumns; ++h) {
        const int64_t next = (h + 1) % kColumns;
        const double angle = x[h] * x[next] + e;
        dg += dy_row[h] * 2 * g * (x[h] * (1 + e / 8) + std::sin(angle));
        dx[h] += dy_row[h] * g * g * (1 + e / 8 + std::cos(angle) * x[next]);
        dx[next] += dy_row[h] * g * g * std::cos(angle) * x[h];
      }
      d.recv_gate.data<double>()[slot] = dg;
    });
    return d;
  }

  // Loss of each token of this rank.
  Values losses(Session& session, const RoutingHandle& handle, const Layer& in) {
    const DispatchResult sent = session.dispatch(handle, case_.call, in.tokens, in.gate);
    const Tensor out = session.combine(handle, case_.call, expert(sent));
    Values losses(static_cast<size_t>(num_tokens()), 0.0);
    for (int64_t i = 0; i < out.numel(); ++i) {
      losses[static_cast<size_t>(i / kColumns)] +=
          out.data<double>()[i] * weight_.data<double>()[i];
    }
    return losses;
  }

  // What the session makes of `gate`, with S_all taken from the unperturbed gates: a constant.
  Tensor scaled(const Tensor& gate) const {
    Tensor out = gate.clone(w_->ctx);
    if (!renormalize()) return out;
    for (int64_t t = 0; t < num_tokens(); ++t) {
      double all = 0.0, kept = 0.0;
      for (int64_t i = t * top_k(); i < (t + 1) * top_k(); ++i) {
        const auto index = static_cast<size_t>(i);
        if (routed_[index]) all += start_.gate.data<double>()[i];
        if (kept_[index]) kept += gate.data<double>()[i];
      }
      for (int64_t i = t * top_k(); i < (t + 1) * top_k() && kept > 0.0; ++i) {
        if (kept_[static_cast<size_t>(i)]) out.data<double>()[i] *= all / kept;
      }
    }
    return out;
  }

  DispatchBackwardResult analytic(const RoutingHandle& handle) {
    Session& session = w_->session;
    const DispatchResult sent = session.dispatch(handle, case_.call, start_.tokens, start_.gate);
    session.combine(handle, case_.call, expert(sent));
    const Tensor dy = session.combine_backward(handle, case_.call, weight_);
    const DispatchResult d = expert_backward(sent, dy);
    return session.dispatch_backward(handle, case_.call, d.recv_tokens, d.recv_gate, start_.gate);
  }

  // Not small: exactly 0, for all that was dropped.
  void expect_zeros(const DispatchBackwardResult& back) const {
    for (int64_t t = 0; t < num_tokens(); ++t) {
      bool lost_all = true;
      for (int64_t i = t * top_k(); i < (t + 1) * top_k(); ++i) {
        const bool kept = kept_[static_cast<size_t>(i)];
        lost_all = lost_all && !kept;
        if (!kept) {
          ASSERT_EQ(back.d_gate.data<double>()[i], 0.0) << "assignment " << i;
        }
      }
      for (int64_t h = 0; h < kColumns && lost_all; ++h) {
        ASSERT_EQ(back.dx.data<double>()[t * kColumns + h], 0.0) << "token " << t;
      }
    }
  }

  std::unique_ptr<World> w_;
  PropertyCase case_;
  EpConfig plain_;
  std::vector<std::vector<Choice>> sources_;
  std::vector<RankTruth> truth_;
  std::vector<bool> routed_, kept_;
  Layer start_;
  Tensor topk_idx_, weight_;
};

TEST_P(Gradient, EqualsCentralDifferences) {
  const PrepareResult prepared = prepare(w_->session, start_.gate);
  const std::vector<int64_t>& dropped = prepared.ledger.dropped_assignments;
  ASSERT_GT(dropped[0], 0) << "rank 0 was to overflow";
  const DispatchBackwardResult back = analytic(prepared.handle);

  // The same without renormalising in the session: gates arrive scaled.
  Session plain(w_->ctx, w_->topology);
  plain.bootstrap(plain_);
  const PrepareResult reference = prepare(plain, start_.gate);
  ASSERT_TRUE(same_bits(reference.handle.row_of, prepared.handle.row_of));
  const Values here = losses(plain, reference.handle, {start_.tokens, scaled(start_.gate)});
  const Values there = losses(w_->session, prepared.handle, start_);
  for (size_t t = 0; t < here.size(); ++t) {
    ASSERT_NEAR(here[t], there[t], 1e-12 * (1 + std::abs(here[t]))) << "token " << t;
  }

  // Column `j` of `which` for all tokens at once; each token's loss answers for its own.
  double largest = 0.0;
  const auto check = [&](Tensor Layer::*which, const Tensor& gradient) {
    const int64_t columns = (start_.*which).dim(1);
    for (int64_t j = 0; j < columns; ++j) {
      Values difference(static_cast<size_t>(num_tokens()), 0.0);
      for (const double sign : {1.0, -1.0}) {
        Layer in{start_.tokens.clone(w_->ctx), start_.gate.clone(w_->ctx)};
        for (int64_t t = 0; t < num_tokens(); ++t) {
          (in.*which).data<double>()[t * columns + j] += sign * kStep;
        }
        const PrepareResult perturbed = prepare(plain, in.gate);
        ASSERT_TRUE(same_bits(perturbed.handle.row_of, reference.handle.row_of));
        in.gate = scaled(in.gate);
        const Values loss = losses(plain, perturbed.handle, in);
        for (size_t t = 0; t < loss.size(); ++t) difference[t] += sign * loss[t] / (2 * kStep);
      }
      for (int64_t t = 0; t < num_tokens(); ++t) {
        const double got = gradient.data<double>()[t * columns + j];
        const double wanted = difference[static_cast<size_t>(t)];
        largest = std::max(largest, std::abs(got));
        ASSERT_NEAR(got, wanted, kTolerance * (1 + std::abs(wanted)))
            << (columns == kColumns ? "token " : "gate of token ") << t << " column " << j;
      }
    }
  };
  check(&Layer::tokens, back.dx);
  check(&Layer::gate, back.d_gate);
  expect_zeros(back);
  if (num_tokens() > 0) {
    EXPECT_GT(largest, 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Orders, Gradient,
    ::testing::Combine(::testing::Values(plan::DropOrder::kTail, plan::DropOrder::kFair,
                                         plan::DropOrder::kRandom, plan::DropOrder::kScore),
                       ::testing::Bool()),
    [](const auto& test) {
      return str(choice_name(plan::kDropOrderChoices, std::get<0>(test.param)),
                 std::get<1>(test.param) ? "_renormalized" : "");
    });

}  // namespace
}  // namespace spillway::ep::test
