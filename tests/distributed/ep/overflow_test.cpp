// What overflow does under each action, and who notices.
#include "distributed/ep/fixture.h"

namespace spillway::ep::test {
namespace {

class Overflow : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_EP_FITS(GetParam());
    w_ = std::make_unique<World>(GetParam());
    config_ = make_config(GetParam(), 2, 8);
    config_.poison = true;
  }
  void bootstrap() { w_->session.bootstrap(config_); }
  int64_t worst() const { return worst_case(config_); }

  // Largest demand of this EP group, and the world rank that has it.
  std::pair<int64_t, int64_t> highest(const Batch& batch) {
    const auto ranks = make_reference(*w_, config_, batch.topk_idx, worst());
    const auto most =
        std::max_element(ranks.begin(), ranks.end(),
                         [](const auto& a, const auto& b) { return a.demand < b.demand; });
    return {most->demand, w_->first_rank() + (most - ranks.begin())};
  }

  // The same over the world.
  int64_t highest_of_all(const Batch& batch) {
    const int64_t mine = highest(batch).first;
    std::vector<int64_t> demands(static_cast<size_t>(w_->world->size()));
    w_->world->all_gather(&mine, demands.data(), sizeof(mine));
    return *std::max_element(demands.begin(), demands.end());
  }

  // One whole layer, forward and backward; tensors of all results.
  std::vector<Tensor> run_layer(const Batch& batch, Sizing sizing = Sizing::kLive) {
    Session& session = w_->session;
    const PrepareResult prepared = session.prepare(batch.args(0, sizing));
    const DispatchResult sent = session.dispatch(prepared.handle, {}, batch.tokens, batch.gate);
    const Tensor out = session.combine(prepared.handle, {}, sent.recv_tokens);
    const Tensor d_expert_out = session.combine_backward(prepared.handle, {}, batch.tokens);
    const DispatchBackwardResult back =
        session.dispatch_backward(prepared.handle, {}, d_expert_out, sent.recv_gate);
    capacity_ = prepared.handle.header.capacity;
    ledger_ = prepared.ledger;
    return {out, back.dx, back.d_gate};
  }

  std::unique_ptr<World> w_;
  EpConfig config_;
  int64_t capacity_ = 0;
  Ledger ledger_;
};

TEST_P(Overflow, FailsOnEveryRankWithTheWholeText) {
  config_.recv_capacity_per_rank = {worst(), 16};
  config_.layer_ids = {1, 5};
  config_.capacity_key = "capacity.factor.factor";
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  const auto [demand, rank] = highest(batch);
  ASSERT_GT(demand, 16);
  const std::string expected =
      str("OverflowError: layer 5 rank ", rank, " demand ", demand,
          " slots capacity 16 slots, smallest that fits ", demand, ": set capacity.factor.factor");
  try {
    w_->session.prepare(batch.args(1));
    ADD_FAILURE() << "no error";
  } catch (const OverflowError& error) {
    EXPECT_EQ(error.what(), expected);
    EXPECT_EQ(error.exit_code(), ExitCode::kOverflow);
  }
  EXPECT_EQ(error_of([&] { w_->session.prepare_and_dispatch(batch.args(1), batch.tokens); }),
            expected);
  EXPECT_EQ(w_->session.live_handles(), 0);
  EXPECT_EQ(w_->ctx.counters().total().prepares, 0);
  EXPECT_EQ(w_->ctx.counters().total().all_to_all_bytes, 0);
}

TEST_P(Overflow, NamesTheConfigKeyOfFixedByDefault) {
  config_.recv_capacity_per_rank = {8};
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  const auto [demand, rank] = highest(batch);
  EXPECT_EQ(
      error_of([&] { w_->session.prepare(batch.args()); }),
      str("OverflowError: layer 0 rank ", rank, " demand ", demand,
          " slots capacity 8 slots, smallest that fits ", demand, ": set capacity.fixed.slots"));
}

TEST_P(Overflow, LeavesTheSessionUsable) {
  config_.recv_capacity_per_rank = {8, worst()};
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  EXPECT_THROW(w_->session.prepare(batch.args(0)), OverflowError);
  const PrepareResult prepared = w_->session.prepare(batch.args(1));
  const DispatchResult sent =
      w_->session.dispatch(prepared.handle, {.layer = 1}, batch.tokens, batch.gate);
  const Tensor out = w_->session.combine(prepared.handle, {.layer = 1}, sent.recv_tokens);
  for (int64_t i = 0; i < out.numel(); ++i) {
    ASSERT_EQ(element(out, i),
              2 * element(batch.tokens, i));  // both chosen experts return the token
  }
}

TEST_P(Overflow, DemandOfExactlyTheCapacityDoesNotOverflow) {
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  config_.recv_capacity_per_rank = {highest_of_all(batch)};
  bootstrap();  // the action is fail
  run_layer(batch);
  for (const int64_t dropped : ledger_.dropped_assignments) EXPECT_EQ(dropped, 0);
}

TEST_P(Overflow, OneSlotTooFewOverflows) {
  config_.alignment = 1;
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  const int64_t most = highest_of_all(batch);
  config_.recv_capacity_per_rank = {most - 1};
  config_.drop_on_overflow = true;
  bootstrap();
  const PrepareResult prepared = w_->session.prepare(batch.args());
  for (size_t rank = 0; rank < prepared.ledger.dropped_assignments.size(); ++rank) {
    const bool overflows = prepared.ledger.total_recv_tokens[rank] == most;
    EXPECT_EQ(prepared.ledger.dropped_assignments[rank], overflows ? 1 : 0);
  }
}

TEST_P(Overflow, TailDropsASourceWhole) {
  if (GetParam() == 1) GTEST_SKIP() << "needs ep of at least 2: at 1 no source is behind another";
  config_ = make_config(GetParam(), 1);
  config_.drop_on_overflow = true;
  // Every token chooses expert 0: all sources but the last fill its zone.
  config_.recv_capacity_per_rank = {(GetParam() - 1) * kTokens};
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kHotExpert);
  const PrepareResult prepared = w_->session.prepare(batch.args());
  std::vector<int64_t> by_source(static_cast<size_t>(GetParam()), 0);
  by_source.back() = kTokens;
  EXPECT_EQ(prepared.ledger.dropped_by_source, by_source);
  const bool loses = w_->topology.ep_rank() == GetParam() - 1;
  EXPECT_EQ(prepared.ledger.fully_dropped_tokens, loses ? kTokens : 0);
  EXPECT_EQ(prepared.ledger.dropped_gate_mass, loses ? prepared.ledger.gate_mass : 0.0);
  const DispatchResult sent = w_->session.dispatch(prepared.handle, {}, batch.tokens, batch.gate);
  const Tensor out = w_->session.combine(prepared.handle, {}, sent.recv_tokens);
  const auto back = w_->session.dispatch_backward(
      prepared.handle, {}, w_->session.combine_backward(prepared.handle, {}, batch.tokens),
      sent.recv_gate);
  for (int64_t i = 0; i < out.numel(); ++i) {
    ASSERT_EQ(element(out, i), loses ? 0.0 : element(batch.tokens, i));
    ASSERT_EQ(element(back.dx, i), loses ? 0.0 : element(batch.tokens, i));
  }
  for (int64_t i = 0; i < back.d_gate.numel(); ++i) {
    ASSERT_EQ(element(back.d_gate, i), loses ? 0.0 : element(batch.gate, i));
  }
}

TEST_P(Overflow, GrowHasTheBitsOfTheWorstCaseRun) {
  config_.recv_capacity_per_rank = {8};
  config_.grow_on_overflow = true;
  config_.grow_margin = 0.25;
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  const int64_t demand = highest(batch).first;
  const auto grown = run_layer(batch);
  const int64_t expected = std::min(worst(), round_up(demand + (demand + 3) / 4, int64_t{8}));
  EXPECT_EQ(capacity_, expected);
  EXPECT_EQ(w_->session.capacity(0), expected);
  EXPECT_EQ(ledger_.capacity_begin, 8);
  EXPECT_EQ(ledger_.capacity_end, expected);
  EXPECT_EQ(w_->session.epoch(), 0);
  for (const int64_t dropped : ledger_.dropped_assignments) EXPECT_EQ(dropped, 0);

  w_->session.finalize();
  config_.recv_capacity_per_rank = {worst()};
  bootstrap();
  const auto roomy = run_layer(batch);
  for (size_t i = 0; i < grown.size(); ++i) EXPECT_TRUE(same_bits(grown[i], roomy[i])) << i;
}

TEST_P(Overflow, GrowStopsAtTheWorstCase) {
  config_.recv_capacity_per_rank = {8};
  config_.grow_on_overflow = true;
  config_.grow_margin = 1e6;
  bootstrap();
  run_layer(make_batch(*w_, config_, Routing::kHotRank));
  EXPECT_EQ(capacity_, worst());
}

TEST_P(Overflow, GrowLeavesLiveHandlesValid) {
  config_.alignment = 1;
  config_.grow_on_overflow = true;
  const Batch full = make_batch(*w_, config_, Routing::kHotRank);
  const Batch part{full.topk_idx.rows(0, 4), full.gate.rows(0, 4), full.tokens.rows(0, 4)};
  const int64_t capacity = 4 * 2 * GetParam();  // all rows of all parts
  config_.recv_capacity_per_rank = {capacity};
  bootstrap();
  const PrepareResult before = w_->session.prepare(part.args());
  const DispatchResult sent = w_->session.dispatch(before.handle, {}, part.tokens, part.gate);
  const Tensor rows_before = sent.recv_tokens.clone(w_->ctx);
  ASSERT_EQ(before.handle.header.capacity, capacity);

  const auto grown = w_->session.prepare_and_dispatch(full.args(), full.tokens);
  EXPECT_EQ(grown.prepare.handle.header.capacity, 4 * capacity);
  EXPECT_TRUE(same_bits(sent.recv_tokens, rows_before));
  const Tensor out = w_->session.combine(before.handle, {}, sent.recv_tokens);
  for (int64_t i = 0; i < out.numel(); ++i) ASSERT_EQ(element(out, i), 2 * element(part.tokens, i));
  EXPECT_EQ(w_->session.combine_backward(before.handle, {}, part.tokens).dim(0), capacity);
}

TEST_P(Overflow, RaisingNeverLowers) {
  config_.recv_capacity_per_rank = {32, 64};
  bootstrap();
  w_->session.raise_capacity(0, 40);
  w_->session.raise_capacity(1, 40);
  EXPECT_EQ(w_->session.capacity(0), 40);
  EXPECT_EQ(w_->session.capacity(1), 64);
  EXPECT_TRUE(contains(error_of([&] { w_->session.raise_capacity(0, 41); }),
                       "capacity is 41 slots; allowed: a multiple of alignment = 8"));
  EXPECT_TRUE(contains(error_of([&] { w_->session.raise_capacity(2, 48); }),
                       "layer is 2; allowed: 0 to 1"));
  EXPECT_EQ(w_->session.epoch(), 0);
}

TEST_P(Overflow, LosslessSizingFitsTheCallAndKeepsTheLayersCapacity) {
  config_.recv_capacity_per_rank = {8};
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  const auto fitted = run_layer(batch, Sizing::kLossless);
  EXPECT_EQ(capacity_, highest(batch).first);
  EXPECT_EQ(w_->session.capacity(0), 8);
  EXPECT_EQ(ledger_.capacity_begin, capacity_);
  for (const int64_t dropped : ledger_.dropped_assignments) EXPECT_EQ(dropped, 0);
  // Nobody has a token: one zone's worth of slots, none of them used.
  const Batch nothing = make_batch(*w_, config_, Routing::kAllZero);
  run_layer(nothing, Sizing::kLossless);
  EXPECT_EQ(capacity_, 8);
}

TEST_P(Overflow, DropSizingDropsWhateverTheSessionsAction) {
  config_.recv_capacity_per_rank = {8};
  bootstrap();  // the action is fail
  const Batch batch = make_batch(*w_, config_, Routing::kHotRank);
  run_layer(batch, Sizing::kDrop);
  const auto ranks = make_reference(*w_, config_, batch.topk_idx, 8);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ledger_.dropped_assignments[rank], ranks[rank].dropped());
  }
  EXPECT_GT(ledger_.dropped_assignments[0], 0);
  EXPECT_THROW(run_layer(batch), OverflowError);
}

TEST_P(Overflow, ARepeatedDispatchTakesTheCapacityOfTheFirst) {
  config_.recv_capacity_per_rank = {8};
  config_.drop_on_overflow = true;
  bootstrap();
  const Batch batch = make_batch(*w_, config_, Routing::kUniform);
  const PrepareResult first = w_->session.prepare(batch.args());
  w_->session.raise_capacity(0, worst());
  PrepareArgs args = batch.args();
  args.capacity = first.handle.header.capacity;
  const PrepareResult again = w_->session.prepare(args);
  EXPECT_EQ(again.handle.header.checksum, first.handle.header.checksum);
  EXPECT_TRUE(same_bits(again.handle.row_of, first.handle.row_of));
  EXPECT_EQ(again.ledger.dropped_assignments, first.ledger.dropped_assignments);
  EXPECT_EQ(again.ledger.capacity_end, 8);
  EXPECT_EQ(w_->session.prepare(batch.args()).handle.header.capacity, worst());
}

INSTANTIATE_TEST_SUITE_P(Ep, Overflow, ::testing::Values(1, 2, 4),
                         [](const auto& test) { return "ep" + std::to_string(test.param); });

TEST(GrowAcrossGroups, OverflowInOneGroupOnlyDoesNotHangTheOthers) {
  if (World::size() % 2 != 0 || World::size() < 4) {
    GTEST_SKIP() << "needs two EP groups of 2 ranks; this world has " << World::size();
  }
  World w(2);
  EpConfig config = make_config(2, 2);
  config.recv_capacity_per_rank = {2 * kTokens + 8};
  config.grow_on_overflow = true;
  w.session.bootstrap(config);
  // Group 0 sends everything to its rank 0, the other groups spread theirs.
  const bool hot = w.topology.dp_rank() == 0;
  const Batch batch = make_batch(w, config, hot ? Routing::kHotRank : Routing::kEmptyExperts);
  const PrepareResult prepared = w.session.prepare(batch.args());
  EXPECT_EQ(prepared.handle.header.capacity, hot ? 4 * kTokens : 2 * kTokens + 8);
  EXPECT_EQ(prepared.ledger.capacity_end > prepared.ledger.capacity_begin, hot);
  const DispatchResult sent = w.session.dispatch(prepared.handle, {}, batch.tokens, batch.gate);
  const Tensor out = w.session.combine(prepared.handle, {}, sent.recv_tokens);
  for (int64_t i = 0; i < out.numel(); ++i)
    ASSERT_EQ(element(out, i), 2 * element(batch.tokens, i));
  // Between steps the world agrees on the largest.
  std::vector<int64_t> capacities(static_cast<size_t>(w.world->size()));
  const int64_t mine = w.session.capacity(0);
  w.world->all_gather(&mine, capacities.data(), sizeof(mine));
  w.session.raise_capacity(0, *std::max_element(capacities.begin(), capacities.end()));
  EXPECT_EQ(w.session.capacity(0), 4 * kTokens);
  EXPECT_EQ(w.session.prepare(batch.args()).handle.header.capacity, 4 * kTokens);
}

}  // namespace
}  // namespace spillway::ep::test
