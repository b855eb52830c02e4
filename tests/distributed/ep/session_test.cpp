// The life of a session: bootstrap, finalize, reconfigure, buffers, bad input.
#include "distributed/ep/fixture.h"

#include <chrono>
#include <thread>

namespace spillway::ep::test {
namespace {

class SessionLife : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_EP_FITS(GetParam());
    w_ = std::make_unique<World>(GetParam());
    config_ = make_config(GetParam(), 2, 8);
  }
  Session& session() { return w_->session; }
  // The layer on fresh tokens: identity experts return each token twice.
  void expect_layer_works(const EpConfig& config, int64_t layer = 0) {
    const Batch batch = make_batch(*w_, config, Routing::kUniform);
    const auto sent = session().prepare_and_dispatch(batch.args(layer), batch.tokens);
    EXPECT_EQ(sent.dispatch.recv_tokens.dim(0), session().capacity(layer));
    const Tensor out =
        session().combine(sent.prepare.handle, {.layer = layer}, sent.dispatch.recv_tokens);
    for (int64_t i = 0; i < out.numel(); ++i) {
      ASSERT_EQ(element(out, i), static_cast<double>(config.top_k) * element(batch.tokens, i));
    }
  }

  std::unique_ptr<World> w_;
  EpConfig config_;
};

TEST_P(SessionLife, RefusesASecondBootstrap) {
  session().bootstrap(config_);
  EXPECT_TRUE(contains(error_of([&] { session().bootstrap(config_); }),
                       "the session is bootstrapped already (epoch 0); allowed: finalize first"));
  expect_layer_works(config_);
}

TEST_P(SessionLife, FinalizeIsIdempotentAndFreesTheBuffers) {
  session().finalize();  // before any bootstrap: nothing to do
  EXPECT_EQ(session().epoch(), 0);
  session().bootstrap(config_);
  expect_layer_works(config_);
  EXPECT_GT(w_->ctx.allocator()->use(Purpose::kReceive).current_bytes, 0);
  session().finalize();
  session().finalize();
  EXPECT_EQ(session().epoch(), 1);
  EXPECT_FALSE(session().active());
  EXPECT_EQ(w_->ctx.allocator()->use(Purpose::kReceive).current_bytes, 0);
  EXPECT_TRUE(contains(error_of([&] { session().capacity(0); }), "not bootstrapped"));
}

TEST_P(SessionLife, AgreesOnARandomIdForLife) {
  session().bootstrap(config_);
  const uint64_t id = session().session_id();
  EXPECT_NE(id, 0u);
  std::vector<uint64_t> ids(static_cast<size_t>(w_->world->size()));
  w_->world->all_gather(&id, ids.data(), sizeof(id));
  for (const uint64_t other : ids) EXPECT_EQ(other, id);
  session().finalize();
  session().bootstrap(config_);
  EXPECT_EQ(session().session_id(), id);
}

TEST_P(SessionLife, BootstrapsAgainWithOtherSizes) {
  for (int round = 0; round < 3; ++round) {
    EpConfig config = make_config(GetParam(), 1 + round, int64_t{1} << (2 * round));
    config.num_experts = kExperts * (1 + round);
    config.hidden = kHidden + 5 * round;
    config.recv_capacity_per_rank.assign(static_cast<size_t>(1 + round), worst_case(config));
    session().bootstrap(config);
    EXPECT_EQ(session().epoch(), round);
    expect_layer_works(config, round);
    session().finalize();
  }
}

TEST_P(SessionLife, ReceiveTensorsOutliveFinalize) {
  session().bootstrap(config_);
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  const auto sent = session().prepare_and_dispatch(batch.args(), batch.tokens);
  const Tensor before = sent.dispatch.recv_tokens.clone(w_->ctx);
  session().finalize();
  const Tensor other = Tensor::zeros(w_->ctx, before.shape(), before.dtype(), Purpose::kReceive);
  EXPECT_TRUE(same_bits(sent.dispatch.recv_tokens, before));
}

TEST_P(SessionLife, ABufferInUseIsNeverReused) {
  session().bootstrap(config_);
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  const Batch other = make_batch(*w_, config_, Routing::kUniform, 99);
  const auto first = session().prepare_and_dispatch(batch.args(), batch.tokens);
  const Tensor before = first.dispatch.recv_tokens.clone(w_->ctx);
  const auto second = session().prepare_and_dispatch(other.args(), other.tokens);
  const Tensor third = session().combine_backward(second.prepare.handle, {}, other.tokens);
  EXPECT_FALSE(first.dispatch.recv_tokens.shares_storage(second.dispatch.recv_tokens));
  EXPECT_FALSE(second.dispatch.recv_tokens.shares_storage(third));
  EXPECT_TRUE(same_bits(first.dispatch.recv_tokens, before));
}

TEST_P(SessionLife, AFreeBufferIsReused) {
  config_.recv_capacity_per_rank.assign(3, worst_case(config_));
  session().bootstrap(config_);
  const int64_t one = config_.recv_capacity_per_rank[0] * kHidden * 4;
  EXPECT_EQ(w_->ctx.allocator()->use(Purpose::kReceive).current_bytes, one);
  for (int round = 0; round < 4; ++round) expect_layer_works(config_, round % 3);
  EXPECT_EQ(w_->ctx.allocator()->use(Purpose::kReceive).current_bytes, one);
}

// --- reconfigure ---------------------------------------------------------------------------------

class Reconfigure : public ::testing::TestWithParam<std::tuple<int, ReconfigureMode>> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_EP_FITS(ep());
    w_ = std::make_unique<World>(ep());
    config_ = make_config(ep(), 2, 8);
    w_->session.bootstrap(config_);
  }
  static int ep() { return std::get<0>(GetParam()); }
  static ReconfigureMode mode() { return std::get<1>(GetParam()); }
  std::unique_ptr<World> w_;
  EpConfig config_;
};

TEST_P(Reconfigure, GrowsShrinksAndGrowsWithOtherExpertsAndHidden) {
  const comm::Communicator* group = &w_->topology.ep_group();
  for (int round = 1; round <= 4; ++round) {
    EpConfig next = make_config(ep(), 1 + round % 3, 8);
    next.num_experts = round % 2 == 0 ? kExperts : 2 * kExperts;
    next.hidden = kHidden + 3 * (round % 3);
    next.recv_capacity_per_rank = {worst_case(next) + (round % 2 == 0 ? 512 : 0)};
    const ReconfigureCost cost = w_->session.reconfigure(next, mode());
    EXPECT_GE(cost.drain_ms, 0.0);
    EXPECT_GE(cost.finalize_ms, 0.0);
    EXPECT_GT(cost.init_ms, 0.0);
    EXPECT_GT(cost.alloc_ms, 0.0);
    EXPECT_EQ(w_->session.epoch(), round);
    EXPECT_EQ(w_->session.capacity(0), next.recv_capacity_per_rank[0]);
    EXPECT_EQ(group != &w_->topology.ep_group(), mode() == ReconfigureMode::kCommunicator);
    group = &w_->topology.ep_group();
    const Batch batch = make_batch(*w_, next, Routing::kUnequal, 3);
    const auto sent = w_->session.prepare_and_dispatch(batch.args(), batch.tokens);
    const Tensor out = w_->session.combine(sent.prepare.handle, {}, sent.dispatch.recv_tokens);
    for (int64_t i = 0; i < out.numel(); ++i) {
      ASSERT_EQ(element(out, i), static_cast<double>(next.top_k) * element(batch.tokens, i));
    }
  }
}

TEST_P(Reconfigure, WaitingForTheWorkOfOthersIsDrain) {
  if (w_->world->size() < 2) GTEST_SKIP() << "needs a rank to wait for";
  constexpr double kLateMs = 60.0;
  w_->world->barrier();
  const bool late = w_->rank() == 0;
  if (late) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kLateMs));
  const ReconfigureCost cost = w_->session.reconfigure(config_, mode());
  // Half of it: the barrier lets go of the ranks one by one.
  if (!late) {
    EXPECT_GT(cost.drain_ms, kLateMs / 2);
  }
}

TEST_P(Reconfigure, RefusesOnEveryRankWhileAnyHandleIsAlive) {
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  std::vector<PrepareResult> held;
  for (int i = 0; i < 3; ++i) {
    PrepareResult prepared = w_->session.prepare(batch.args());
    if (w_->rank() == 0) held.push_back(std::move(prepared));  // one rank forgot to let go
  }
  EXPECT_EQ(error_of([&] { w_->session.reconfigure(config_, mode()); }),
            "reconfigure: 3 routing handles are alive (3 on rank 0); allowed: none, release what "
            "the tape holds first");
  EXPECT_EQ(w_->session.epoch(), 0);
  held.clear();
  w_->session.reconfigure(config_, mode());
  EXPECT_EQ(w_->session.epoch(), 1);
}

TEST_P(Reconfigure, ARefusedConfigLeavesTheSessionAsItWas) {
  EpConfig bad = config_;
  bad.hidden = 0;
  EXPECT_TRUE(contains(error_of([&] { w_->session.reconfigure(bad, mode()); }), "hidden is 0"));
  EXPECT_EQ(w_->session.epoch(), 0);
  EXPECT_TRUE(w_->session.active());
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  EXPECT_EQ(w_->session.prepare(batch.args()).handle.header.epoch, 0);
}

TEST_P(Reconfigure, NeedsABootstrappedSession) {
  w_->session.finalize();
  EXPECT_TRUE(contains(error_of([&] { w_->session.reconfigure(config_, mode()); }),
                       "the session is not bootstrapped"));
}

INSTANTIATE_TEST_SUITE_P(Modes, Reconfigure,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(ReconfigureMode::kBuffers,
                                                              ReconfigureMode::kCommunicator)),
                         [](const auto& test) {
                           return str("ep", std::get<0>(test.param),
                                      std::get<1>(test.param) == ReconfigureMode::kBuffers
                                          ? "_buffers"
                                          : "_communicator");
                         });

// --- bad input to prepare: the same text on every rank, nobody hangs -----------------------------

TEST_P(SessionLife, NamesTheRankWithTooManyTokens) {
  session().bootstrap(config_);
  const int last = w_->first_rank() + GetParam() - 1;
  const int64_t num_tokens = w_->rank() == last ? kMaxTokens + 1 : kTokens;
  const Tensor ids = Tensor::zeros(w_->ctx, {num_tokens, 2}, DType::kI32);
  const Tensor gate = Tensor::zeros(w_->ctx, {num_tokens, 2}, DType::kF32);
  EXPECT_EQ(
      error_of([&] { session().prepare({.topk_idx = ids, .gate = gate}); }),
      str("prepare on rank ", last, ": T is 25 tokens; allowed: at most max_tokens_per_rank = 24"));
  expect_layer_works(config_);
}

TEST_P(SessionLife, NamesTheRankWithABadId) {
  session().bootstrap(config_);
  Batch batch = make_batch(*w_, config_, Routing::kUniform);
  for (const int32_t bad : {8, -2, 1 << 30}) {
    if (w_->topology.ep_rank() == 0) batch.topk_idx.data<int32_t>()[7] = bad;
    EXPECT_EQ(error_of([&] { session().prepare(batch.args()); }),
              str("prepare on rank ", w_->first_rank(), ": topk_idx[3,1] is ", bad,
                  "; allowed: -1 to 7"));
  }
  expect_layer_works(config_);
}

TEST_P(SessionLife, DebugModeNamesAnExpertChosenTwice) {
  config_.poison = true;
  session().bootstrap(config_);
  Batch batch = make_batch(*w_, config_, Routing::kUniform);
  if (w_->topology.ep_rank() == 0) {
    batch.topk_idx.data<int32_t>()[4] = batch.topk_idx.data<int32_t>()[5] = 3;
  }
  EXPECT_EQ(error_of([&] { session().prepare(batch.args()); }),
            str("prepare on rank ", w_->first_rank(),
                ": topk_idx[2,0] and [2,1] are both 3; allowed: distinct experts"));
  batch.topk_idx.data<int32_t>()[4] = batch.topk_idx.data<int32_t>()[5] = -1;  // none, twice
  EXPECT_EQ(error_of([&] { session().prepare(batch.args()); }), "");
}

TEST_P(SessionLife, NamesBadShapesAndTypes) {
  session().bootstrap(config_);
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  const Tensor three = Tensor::zeros(w_->ctx, {kTokens, 3}, DType::kI32);
  const Tensor wide = Tensor::zeros(w_->ctx, {kTokens, 2}, DType::kI64);
  const Tensor half = Tensor::zeros(w_->ctx, {kTokens, 2}, DType::kBF16);
  const auto text = [&](const PrepareArgs& args) {
    return error_of([&] { session().prepare(args); });
  };
  EXPECT_TRUE(contains(text({.topk_idx = three, .gate = batch.gate}),
                       "topk_idx is i32 [16, 3]; allowed: i32 [T, 2]"));
  EXPECT_TRUE(contains(text({.topk_idx = wide, .gate = batch.gate}), "topk_idx is i64 [16, 2]"));
  EXPECT_TRUE(contains(text({.topk_idx = batch.topk_idx, .gate = half}),
                       "gate is bf16 [16, 2]; allowed: f32 or f64 [16, 2]"));
  EXPECT_TRUE(contains(text(batch.args(1)), "layer is 1; allowed: 0 to 0"));
  PrepareArgs huge = batch.args();
  huge.capacity = int64_t{1} << 31;
  EXPECT_TRUE(contains(text(huge), "capacity is 2147483648 slots; allowed: at most 2147483599"));
}

TEST_P(SessionLife, NamesRanksThatAreInDifferentCalls) {
  if (GetParam() == 1) GTEST_SKIP() << "needs ep of at least 2: ranks must differ";
  session().bootstrap(config_);
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  PrepareArgs args = batch.args();
  args.call.micro_batch = w_->topology.ep_rank() == 1 ? 4 : 3;
  EXPECT_EQ(error_of([&] { session().prepare(args); }),
            str("prepare: the ranks of an EP group are in different calls: micro_batch is 3 on "
                "rank ",
                w_->first_rank(), ", 4 on rank ", w_->first_rank() + 1));
}

INSTANTIATE_TEST_SUITE_P(Ep, SessionLife, ::testing::Values(1, 2, 4),
                         [](const auto& test) { return "ep" + std::to_string(test.param); });

}  // namespace
}  // namespace spillway::ep::test
