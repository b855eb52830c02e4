// Bits and counters: fused equals split, C equals 2C, a repetition equals the first run, and every
// collective is counted where it happens. Values are random floats, so that any other order of
// additions would show.
#include "distributed/ep/fixture.h"

namespace spillway::ep::test {
namespace {

struct LayerRun {
  PrepareResult prepared;
  DispatchResult sent;
  Tensor out, d_expert_out, dx, d_gate;
};

using Case = std::tuple<int, DType>;

class Repeatability : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_EP_FITS(ep());
    w_ = std::make_unique<World>(ep());
    config_ = make_config(ep(), 4, 8, std::get<1>(GetParam()));
    batch_ = make_batch(*w_, config_, Routing::kUniform);
    batch_.gate = random(batch_.gate.shape(), DType::kF32, 1);
    batch_.tokens = random(batch_.tokens.shape(), config_.dtype, 2);
    dout_ = random(batch_.tokens.shape(), config_.dtype, 3);
  }
  static int ep() { return std::get<0>(GetParam()); }
  Tensor random(Shape shape, DType dtype, uint64_t stream) {
    Rng rng(11 + static_cast<uint64_t>(w_->rank()), stream);
    return fill(w_->ctx, shape, dtype, [&](int64_t, int64_t) { return rng.normal(); });
  }
  void bootstrap(int64_t capacity) {
    w_->session.finalize();
    config_.recv_capacity_per_rank = {capacity};
    w_->session.bootstrap(config_);
    w_->ctx.counters().reset();
  }

  LayerRun run(bool fused) {
    Session& session = w_->session;
    LayerRun run;
    if (fused) {
      auto both = session.prepare_and_dispatch(batch_.args(), batch_.tokens);
      run.prepared = both.prepare;
      run.sent = both.dispatch;
    } else {
      run.prepared = session.prepare(batch_.args());
      run.sent = session.dispatch(run.prepared.handle, {}, batch_.tokens, batch_.gate);
    }
    const RoutingHandle& handle = run.prepared.handle;
    run.out = session.combine(handle, {}, run.sent.recv_tokens);
    const bool before = w_->ctx.counters().set_in_backward(true);
    run.d_expert_out = session.combine_backward(handle, {}, dout_);
    const auto back = session.dispatch_backward(handle, {}, run.d_expert_out, run.sent.recv_gate);
    w_->ctx.counters().set_in_backward(before);
    run.dx = back.dx;
    run.d_gate = back.d_gate;
    return run;
  }

  static void expect_same(const LayerRun& a, const LayerRun& b) {
    const int64_t used = a.prepared.handle.num_slots();
    ASSERT_EQ(used, b.prepared.handle.num_slots());
    EXPECT_TRUE(same_bits(a.prepared.handle.row_of, b.prepared.handle.row_of));
    EXPECT_TRUE(same_bits(a.sent.recv_tokens.rows(0, used), b.sent.recv_tokens.rows(0, used)));
    EXPECT_TRUE(same_bits(a.sent.recv_gate.rows(0, used), b.sent.recv_gate.rows(0, used)));
    EXPECT_TRUE(same_bits(a.out, b.out));
    EXPECT_TRUE(same_bits(a.d_expert_out.rows(0, used), b.d_expert_out.rows(0, used)));
    EXPECT_TRUE(same_bits(a.dx, b.dx));
    EXPECT_TRUE(same_bits(a.d_gate, b.d_gate));
    EXPECT_EQ(a.prepared.total_recv_tokens, b.prepared.total_recv_tokens);
    EXPECT_EQ(a.prepared.ledger.dropped_assignments, b.prepared.ledger.dropped_assignments);
  }

  std::unique_ptr<World> w_;
  EpConfig config_;
  Batch batch_;
  Tensor dout_;
};

TEST_P(Repeatability, FusedEqualsSplit) {
  bootstrap(worst_case(config_));
  const LayerRun split = run(false), fused = run(true);
  expect_same(split, fused);
  EXPECT_EQ(split.prepared.handle.header.checksum, fused.prepared.handle.header.checksum);
}

TEST_P(Repeatability, FusedEqualsSplitWhenItDrops) {
  config_.drop_on_overflow = true;
  bootstrap(tight_capacity(config_));
  const LayerRun split = run(false);
  const std::vector<int64_t>& dropped = split.prepared.ledger.dropped_assignments;
  EXPECT_GT(*std::max_element(dropped.begin(), dropped.end()), 0);
  expect_same(split, run(true));
}

TEST_P(Repeatability, TwiceTheCapacityHasTheSameBits) {
  bootstrap(worst_case(config_));
  const LayerRun first = run(false);
  bootstrap(2 * worst_case(config_));
  const LayerRun second = run(false);
  EXPECT_EQ(second.sent.recv_tokens.dim(0), 2 * first.sent.recv_tokens.dim(0));
  expect_same(first, second);
}

TEST_P(Repeatability, BackwardIsTheTransposeOfForward) {
  // <combine(y), dout> = <y, combine_backward(dout)> over the group, for y = recv_tokens.
  bootstrap(worst_case(config_));
  const LayerRun layer = run(false);
  double forward = 0, backward = 0, magnitude = 0;
  for (int64_t i = 0; i < layer.out.numel(); ++i)
    forward += element(layer.out, i) * element(dout_, i);
  for (int64_t i = 0; i < layer.prepared.handle.num_slots() * kHidden; ++i) {
    const double term = element(layer.sent.recv_tokens, i) * element(layer.d_expert_out, i);
    backward += term;
    magnitude += std::abs(term);
  }
  Tensor sums =
      Tensor::from<double>(w_->ctx, {3}, std::vector<double>{forward, backward, magnitude});
  w_->topology.ep_group().all_reduce_sum(w_->ctx, sums);
  const double* s = sums.data<double>();
  // Only the sum over k is rounded: once a token in bf16 (2^-9), else in f32.
  const double rounding = config_.dtype == DType::kBF16 ? 1e-2 : 1e-6;
  EXPECT_NEAR(s[0], s[1], rounding * s[2]);
  EXPECT_GT(std::abs(s[0]), 0.0);
}

TEST_P(Repeatability, CountersFollowTheTable) {
  bootstrap(worst_case(config_));
  const int64_t row_bytes = kHidden * dtype_bytes(config_.dtype);
  for (const bool fused : {false, true}) {
    w_->ctx.counters().reset();
    const LayerRun layer = run(fused);
    const CounterSet& total = w_->ctx.counters().total();
    const CounterSet& backward = w_->ctx.counters().backward();
    EXPECT_EQ(total.prepares, fused ? 0 : 1);
    EXPECT_EQ(total.fused_prepares, fused ? 1 : 0);
    EXPECT_EQ(total.forward_dispatches, 1);
    EXPECT_EQ(total.combines, 1);
    EXPECT_EQ(total.backward_transports, 2);
    EXPECT_EQ(total.host_syncs, ep() > 1 ? 1 : 0);
    EXPECT_EQ(backward, (CounterSet{.backward_transports = 2,
                                    .all_to_all_bytes = backward.all_to_all_bytes}));
    // Rows out with their gates and rows of others back; backward the same the other way round.
    const int64_t sent = layer.prepared.handle.send_assignment.dim(0);
    int64_t received = 0;
    for (size_t cell = 0; cell < layer.prepared.handle.recv_counts.size(); ++cell) {
      const auto experts_per_rank = static_cast<size_t>(kExperts / ep());
      if (static_cast<int>(cell / experts_per_rank) == w_->topology.ep_rank()) continue;
      received += layer.prepared.handle.recv_counts[cell];
    }
    EXPECT_EQ(total.all_to_all_bytes, (sent + received) * (2 * row_bytes + 4));
    EXPECT_EQ(total.all_to_all_bytes > 0, ep() > 1);
  }
}

TEST_P(Repeatability, EvaluationIsNotCounted) {
  bootstrap(worst_case(config_));
  const bool before = w_->ctx.counters().set_enabled(false);
  run(false);
  w_->ctx.counters().set_enabled(before);
  EXPECT_EQ(w_->ctx.counters().total(), CounterSet{});
}

TEST_P(Repeatability, LayersWithDifferentBatchesDoNotMeet) {
  // Two layers in flight at once, used out of order, twice with other batches: a handle that went
  // stale or a shared buffer would show.
  config_.recv_capacity_per_rank = {worst_case(config_), worst_case(config_)};
  w_->session.finalize();
  w_->session.bootstrap(config_);
  for (uint64_t round = 0; round < 2; ++round) {
    std::vector<Batch> batches;
    std::vector<PrepareAndDispatchResult> layers;
    for (int64_t layer = 0; layer < 2; ++layer) {
      batches.push_back(make_batch(*w_, config_, Routing::kUnequal, 10 * round + 5));
      Batch& batch = batches.back();
      for (int64_t i = 0; i < batch.tokens.numel(); ++i) {
        set_element(batch.tokens, i, static_cast<double>((i + layer * 3) % 8));
      }
      layers.push_back(w_->session.prepare_and_dispatch(batch.args(layer), batch.tokens));
    }
    for (size_t layer : {1, 0}) {
      const Tensor out =
          w_->session.combine(layers[layer].prepare.handle, {.layer = static_cast<int64_t>(layer)},
                              layers[layer].dispatch.recv_tokens);
      for (int64_t i = 0; i < out.numel(); ++i) {
        ASSERT_EQ(element(out, i), 4 * element(batches[layer].tokens, i));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, Repeatability,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return str("ep", std::get<0>(test.param), "_",
                                      dtype_name(std::get<1>(test.param)));
                         });

TEST(HostSyncs, AtOneRankOnlyWhereItMustFailOrGrow) {
  World w(1);
  EpConfig config = make_config(1);
  const auto syncs = [&](int64_t capacity, bool drop, bool grow) {
    w.session.finalize();
    config.recv_capacity_per_rank = {capacity};
    config.drop_on_overflow = drop;
    config.grow_on_overflow = grow;
    w.session.bootstrap(config);
    w.ctx.counters().reset();
    w.session.prepare(make_batch(w, config, Routing::kUniform).args());
    return w.ctx.counters().total().host_syncs;
  };
  const int64_t worst = worst_case(config);
  EXPECT_EQ(syncs(worst, false, false), 0);
  EXPECT_EQ(syncs(worst - 1, true, false), 0);
  EXPECT_EQ(syncs(worst - 1, false, false), 1);
  EXPECT_EQ(syncs(worst - 1, false, true), 1);
}

TEST(SelfTransport, CarriesASession) {
  const auto self = comm::make_self_communicator();
  Context ctx;
  comm::Topology topology(*self, 1);
  Session session(ctx, topology);
  const EpConfig config = make_config(1, 2);
  session.bootstrap(config);
  const Tensor ids = Tensor::from<int32_t>(ctx, {2, 2}, std::vector<int32_t>{3, 0, 0, -1});
  const Tensor gate = Tensor::from<float>(ctx, {2, 2}, std::vector<float>{2, 3, 4, 5});
  const Tensor tokens =
      fill(ctx, {2, kHidden}, DType::kF32, [](int64_t t, int64_t h) { return 10 * t + h + 1; });
  auto sent = session.prepare_and_dispatch({.topk_idx = ids, .gate = gate}, tokens);
  EXPECT_EQ(sent.prepare.token_counts, (std::vector<int64_t>{2, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(element(sent.dispatch.recv_gate, 0), 3);
  EXPECT_EQ(element(sent.dispatch.recv_gate, 1), 4);
  EXPECT_EQ(element(sent.dispatch.recv_gate, 2), 2);
  const Tensor out = session.combine(sent.prepare.handle, {}, sent.dispatch.recv_tokens);
  EXPECT_EQ(element(out, 0), 2 * 1);
  EXPECT_EQ(element(out, kHidden), 11);
  sent = PrepareAndDispatchResult{};  // else its handle is alive
  session.reconfigure(config, ReconfigureMode::kCommunicator);
  EXPECT_EQ(session.epoch(), 1);
}

}  // namespace
}  // namespace spillway::ep::test
