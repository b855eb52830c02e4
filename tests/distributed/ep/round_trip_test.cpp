// Where rows land, what comes back, and the gradients of both, row by row against the reference.
// Values are small integers: every comparison is exact.
#include "distributed/ep/fixture.h"

namespace spillway::ep::test {
namespace {

struct RoutingCase {
  const char* name;
  Routing routing;
  int64_t top_k;
};
constexpr RoutingCase kRoutings[] = {{"uniform", Routing::kUniform, 2},
                                     {"one_expert_a_token", Routing::kUniform, 1},
                                     {"all_experts", Routing::kUniform, 8},
                                     {"hot_expert", Routing::kHotExpert, 3},
                                     {"hot_rank", Routing::kHotRank, 2},
                                     {"empty_experts", Routing::kEmptyExperts, 2},
                                     {"holes", Routing::kHoles, 4},
                                     {"zero_token_rank", Routing::kZeroRank, 2},
                                     {"no_tokens_at_all", Routing::kAllZero, 2},
                                     {"unequal_tokens", Routing::kUnequal, 3}};

struct Mode {
  const char* name;
  DType dtype;
  int64_t alignment;
  bool drop;
};
constexpr Mode kModes[] = {{"f32_lossless_A8", DType::kF32, 8, false},
                           {"f32_drop_A1", DType::kF32, 1, true},
                           {"bf16_lossless_A1", DType::kBF16, 1, false},
                           {"bf16_drop_A8", DType::kBF16, 8, true}};

using Case = std::tuple<int, RoutingCase, Mode>;

class RoundTrip : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_EP_FITS(std::get<0>(GetParam()));
    const Mode& mode = std::get<2>(GetParam());
    const RoutingCase& routing = std::get<1>(GetParam());
    w_ = std::make_unique<World>(std::get<0>(GetParam()));
    config_ = make_config(std::get<0>(GetParam()), routing.top_k, mode.alignment, mode.dtype);
    config_.poison = true;
    config_.drop_on_overflow = mode.drop;
    if (mode.drop) config_.recv_capacity_per_rank = {tight_capacity(config_)};
    capacity_ = config_.recv_capacity_per_rank[0];
    w_->session.bootstrap(config_);
    batch_ = make_batch(*w_, config_, routing.routing);
    ranks_ = make_reference(*w_, config_, batch_.topk_idx, capacity_);
    prepared_ = w_->session.prepare(batch_.args());
  }

  const RankReference& here() const { return ranks_[static_cast<size_t>(w_->topology.ep_rank())]; }
  int64_t source_token(const Assignment& a) const {
    return global_token(w_->first_rank() + static_cast<int>(a.source), a.t);
  }

  // Kept rows hold `value(assignment, h)`, padding rows 0, the tail NaN.
  template <typename Value>
  void expect_slots(const Tensor& slots, Value&& value) const {
    const int64_t columns = slots.numel() / capacity_;
    std::vector<double> expected(static_cast<size_t>(slots.numel()), 0.0);
    for (size_t i = 0; i < here().num_kept; ++i) {
      const Assignment& a = here().assignments[i];
      for (int64_t h = 0; h < columns; ++h) {
        expected[static_cast<size_t>(a.slot * columns + h)] = value(a, h);
      }
    }
    const int64_t used = prepared_.handle.num_slots();
    for (int64_t i = 0; i < slots.numel(); ++i) {
      const double actual = element(slots, i);
      if (i / columns < used) {
        ASSERT_EQ(actual, expected[static_cast<size_t>(i)])
            << "slot " << i / columns << " column " << i % columns;
      } else {
        ASSERT_TRUE(std::isnan(actual)) << "slot " << i / columns << " of the poisoned tail";
      }
    }
  }

  // [C, columns]: `value(rank, slot, h)` in kept rows and NaN everywhere else, which nobody may
  // read.
  template <typename Value>
  Tensor make_slots(Shape shape, DType dtype, Value&& value) const {
    const int64_t columns = shape.numel() / capacity_;
    Tensor slots = Tensor::empty(w_->ctx, shape, dtype);
    for (int64_t i = 0; i < slots.numel(); ++i) set_element(slots, i, std::nan(""));
    for (size_t i = 0; i < here().num_kept; ++i) {
      const int64_t slot = here().assignments[i].slot;
      for (int64_t h = 0; h < columns; ++h) {
        set_element(slots, slot * columns + h, value(w_->topology.ep_rank(), slot, h));
      }
    }
    return slots;
  }

  // Calls f(receiving rank, assignment) for this rank's kept assignments.
  template <typename F>
  void for_each_kept(F&& f) const {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (size_t i = 0; i < ranks_[rank].num_kept; ++i) {
        const Assignment& a = ranks_[rank].assignments[i];
        if (a.source == w_->topology.ep_rank()) f(static_cast<int64_t>(rank), a);
      }
    }
  }

  std::unique_ptr<World> w_;
  EpConfig config_;
  int64_t capacity_ = 0;
  Batch batch_;
  std::vector<RankReference> ranks_;
  PrepareResult prepared_;
};

TEST_P(RoundTrip, DispatchPlacesEveryRow) {
  const DispatchResult sent =
      w_->session.dispatch(prepared_.handle, {}, batch_.tokens, batch_.gate);
  ASSERT_EQ(sent.recv_tokens.shape(), Shape({capacity_, kHidden}));
  ASSERT_EQ(sent.recv_tokens.dtype(), config_.dtype);
  ASSERT_EQ(sent.recv_gate.shape(), Shape({capacity_}));
  EXPECT_EQ(sent.recv_tokens.purpose(), Purpose::kReceive);
  expect_slots(sent.recv_tokens,
               [&](const Assignment& a, int64_t h) { return token_value(source_token(a), h); });
  expect_slots(sent.recv_gate,
               [&](const Assignment& a, int64_t) { return gate_value(source_token(a), a.k); });
}

TEST_P(RoundTrip, CombineSumsTheKeptSlots) {
  const DispatchResult sent =
      w_->session.dispatch(prepared_.handle, {}, batch_.tokens, batch_.gate);
  const Tensor expert_out =
      make_slots({capacity_, kHidden}, config_.dtype, [&](int64_t, int64_t slot, int64_t h) {
        return element(sent.recv_gate, slot) * element(sent.recv_tokens, slot * kHidden + h);
      });
  const Tensor out = w_->session.combine(prepared_.handle, {}, expert_out);
  Tensor expected = Tensor::zeros(w_->ctx, batch_.tokens.shape(), DType::kF64);
  for_each_kept([&](int64_t, const Assignment& a) {
    const int64_t token = global_token(w_->rank(), a.t);
    for (int64_t h = 0; h < kHidden; ++h) {
      expected.data<double>()[a.t * kHidden + h] += gate_value(token, a.k) * token_value(token, h);
    }
  });
  ASSERT_EQ(out.shape(), batch_.tokens.shape());
  for (int64_t i = 0; i < out.numel(); ++i) {
    ASSERT_EQ(element(out, i), expected.data<double>()[i])
        << "token " << i / kHidden << " column " << i % kHidden;
  }
}

TEST_P(RoundTrip, CombineBackwardBringsEveryRowsGradient) {
  const auto dout_value = [](int64_t token, int64_t h) { return token_value(token + 3, h) - 7; };
  const Tensor dout =
      fill(w_->ctx, batch_.tokens.shape(), config_.dtype,
           [&](int64_t t, int64_t h) { return dout_value(global_token(w_->rank(), t), h); });
  expect_slots(w_->session.combine_backward(prepared_.handle, {}, dout),
               [&](const Assignment& a, int64_t h) { return dout_value(source_token(a), h); });
}

TEST_P(RoundTrip, DispatchBackwardSumsTheKeptSlotsAndZeroesTheDropped) {
  const auto row_value = [](int64_t rank, int64_t slot, int64_t h) {
    return static_cast<double>((rank * 31 + slot * 7 + h * 3) % 25 - 12);
  };
  const auto gate_gradient = [](int64_t rank, int64_t slot, int64_t) {
    return static_cast<double>(1 + rank * 1000 + slot);
  };
  const Tensor d_recv = make_slots({capacity_, kHidden}, config_.dtype, row_value);
  const Tensor d_recv_gate = make_slots({capacity_}, DType::kF32, gate_gradient);
  const DispatchBackwardResult back =
      w_->session.dispatch_backward(prepared_.handle, {}, d_recv, d_recv_gate);

  Tensor dx = Tensor::zeros(w_->ctx, batch_.tokens.shape(), DType::kF64);
  Tensor d_gate = Tensor::zeros(w_->ctx, batch_.topk_idx.shape(), DType::kF64);
  for_each_kept([&](int64_t rank, const Assignment& a) {
    for (int64_t h = 0; h < kHidden; ++h) {
      dx.data<double>()[a.t * kHidden + h] += row_value(rank, a.slot, h);
    }
    d_gate.data<double>()[a.t * config_.top_k + a.k] = gate_gradient(rank, a.slot, 0);
  });
  ASSERT_EQ(back.dx.shape(), dx.shape());
  ASSERT_EQ(back.d_gate.shape(), d_gate.shape());
  for (int64_t i = 0; i < dx.numel(); ++i) ASSERT_EQ(element(back.dx, i), dx.data<double>()[i]);
  for (int64_t i = 0; i < d_gate.numel(); ++i) {
    ASSERT_EQ(element(back.d_gate, i), d_gate.data<double>()[i]) << "assignment " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, RoundTrip,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::ValuesIn(kRoutings),
                                            ::testing::ValuesIn(kModes)),
                         [](const auto& test) {
                           return str("ep", std::get<0>(test.param), "_",
                                      std::get<1>(test.param).name, "_",
                                      std::get<2>(test.param).name);
                         });

}  // namespace
}  // namespace spillway::ep::test
