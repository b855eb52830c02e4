// Two EP groups, of which one overflows: what each action does there, that the other group notices
// nothing, and that nobody hangs. And a session that grows, shrinks and grows again with the bits
// of one that keeps its capacity.
#include "distributed/ep/property_check.h"

#include "spillway/core/choice.h"

namespace spillway::ep::test {
namespace {

/// One layer forward and backward; all that leaves it.
std::vector<Tensor> run_layer(World& w, const Batch& batch, const PrepareArgs& args, bool fused) {
  Session& session = w.session;
  PrepareAndDispatchResult both;
  if (fused) {
    both = session.prepare_and_dispatch(args, batch.tokens);
  } else {
    both.prepare = session.prepare(args);
    both.dispatch = session.dispatch(both.prepare.handle, args.call, batch.tokens, batch.gate);
  }
  const RoutingHandle& handle = both.prepare.handle;
  const Tensor out = session.combine(handle, args.call, both.dispatch.recv_tokens);
  const Tensor dy = session.combine_backward(handle, args.call, out);
  const DispatchBackwardResult back =
      session.dispatch_backward(handle, args.call, dy, both.dispatch.recv_gate, batch.gate);
  return {out, back.dx, back.d_gate};
}

using GroupCase = std::tuple<plan::DropOrder, int64_t, DType>;

class OneOfTwoGroups : public ::testing::TestWithParam<GroupCase> {
 protected:
  static constexpr int64_t kBusyTokens = 40, kCalmTokens = 4;

  void SetUp() override {
    if (World::size() < 2) GTEST_SKIP() << "needs a world of at least 2: two EP groups";
    w_ = std::make_unique<World>(World::size() / 2);
    const auto [order, alignment, dtype] = GetParam();
    const int64_t ep = w_->topology.ep();
    case_.config = {.ep = ep,
                    .num_experts = 4 * ep,
                    .hidden = 6,
                    .top_k = 2,
                    .alignment = alignment,
                    .dtype = dtype,
                    .max_tokens_per_rank = kBusyTokens,
                    .drop_order = order,
                    .drop_seed = 4};
    case_.call = {.layer = 1, .micro_batch = 1, .step = 2};
    case_.fused = alignment == 8;
    busy_ = w_->topology.dp_rank() == 0;
    for (int64_t rank = 0; rank < 2 * ep; ++rank) {
      case_.num_tokens.push_back(rank < ep ? kBusyTokens : kCalmTokens);
    }
    // The busy group sends everything to its rank 0, spread over its four experts; the calm one to
    // two of them.
    std::vector<Choice> mine;
    for (int64_t t = 0; t < (busy_ ? kBusyTokens : kCalmTokens); ++t) {
      for (int64_t k = 0; k < 2; ++k) {
        mine.push_back({busy_ ? (t + k) % 4 : k, static_cast<double>(1 + (t + 2 * k) % 5)});
      }
    }
    sources_ = gather_choices(w_->topology.ep_group(), mine, case_.config);
    batch_ = batch_of(*w_, case_, mine);
    demand_ = demand_of(sources_, case_.config, 0);
    // Zones of the calm group fit in half of what the busy one needs.
    busy_demand_ = 4 * round_up(ep * kBusyTokens / 2, alignment);
    capacity_ = busy_demand_ / 2;
    ASSERT_EQ(demand_ > capacity_, busy_);
    case_.config.recv_capacity_per_rank = {alignment, capacity_};
  }

  PrepareArgs args(Sizing sizing = Sizing::kLive) const {
    return {.call = case_.call, .topk_idx = batch_.topk_idx, .gate = batch_.gate, .sizing = sizing};
  }
  std::vector<RankTruth> check(int64_t capacity_before, int64_t capacity,
                               Sizing sizing = Sizing::kLive) {
    return check_call({.w = *w_,
                       .c = case_,
                       .sources = sources_,
                       .sizing = sizing,
                       .capacity_before = capacity_before,
                       .capacity = capacity});
  }
  int64_t capacity_over_the_world() const {
    std::vector<int64_t> capacities(static_cast<size_t>(w_->world->size()));
    const int64_t mine = w_->session.capacity(1);
    w_->world->all_gather(&mine, capacities.data(), sizeof(mine));
    return *std::max_element(capacities.begin(), capacities.end());
  }

  std::unique_ptr<World> w_;
  PropertyCase case_;
  std::vector<std::vector<Choice>> sources_;
  Batch batch_;
  bool busy_ = false;
  int64_t demand_ = 0, busy_demand_ = 0, capacity_ = 0;
};

TEST_P(OneOfTwoGroups, DropsInThatGroupOnly) {
  case_.config.drop_on_overflow = true;
  w_->session.bootstrap(case_.config);
  const auto ranks = check(capacity_, capacity_);
  EXPECT_EQ(ranks[0].dropped() > 0, busy_);
  EXPECT_EQ(capacity_over_the_world(), capacity_);
}

TEST_P(OneOfTwoGroups, FailsOnEveryRankOfThatGroupOnly) {
  w_->session.bootstrap(case_.config);
  if (busy_) {
    for (const bool fused : {false, true}) {
      EXPECT_EQ(
          error_of([&] {
            if (fused) w_->session.prepare_and_dispatch(args(), batch_.tokens);
            if (!fused) w_->session.prepare(args());
          }),
          str("OverflowError: layer 1 rank 0 demand ", busy_demand_, " slots capacity ", capacity_,
              " slots, smallest that fits ", busy_demand_, ": set capacity.fixed.slots"));
    }
    EXPECT_THROW(w_->session.prepare(args()), OverflowError);
    EXPECT_EQ(w_->session.live_handles(), 0);
  } else {
    check(capacity_, capacity_);
  }
  EXPECT_EQ(capacity_over_the_world(), capacity_);
  // Usable as before, and with the capacity that the error names.
  check(capacity_, std::max(demand_, case_.config.alignment), Sizing::kLossless);
  case_.config.recv_capacity_per_rank[1] = busy_demand_;
  w_->session.reconfigure(case_.config, ReconfigureMode::kCommunicator);
  check(busy_demand_, busy_demand_);
}

TEST_P(OneOfTwoGroups, GrowsInThatGroupOnlyWithTheBitsOfARoomyRun) {
  case_.config.grow_on_overflow = true;
  w_->session.bootstrap(case_.config);
  const auto grown = run_layer(*w_, batch_, args(), case_.fused);
  EXPECT_EQ(w_->session.capacity(1), busy_ ? busy_demand_ : capacity_);
  EXPECT_EQ(w_->session.capacity(0), case_.config.alignment);
  // At the end of the step all capacities are those of the highest.
  w_->session.raise_capacity(1, capacity_over_the_world());
  EXPECT_EQ(w_->session.capacity(1), busy_demand_);
  check(busy_demand_, busy_demand_);
  EXPECT_EQ(w_->session.epoch(), 0);

  w_->session.finalize();
  case_.config.recv_capacity_per_rank[1] = worst_case(case_.config);
  w_->session.bootstrap(case_.config);
  const auto roomy = run_layer(*w_, batch_, args(), case_.fused);
  for (size_t i = 0; i < grown.size(); ++i) EXPECT_TRUE(same_bits(grown[i], roomy[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Grid, OneOfTwoGroups,
                         ::testing::Values(GroupCase{plan::DropOrder::kTail, 1, DType::kF32},
                                           GroupCase{plan::DropOrder::kTail, 128, DType::kBF16},
                                           GroupCase{plan::DropOrder::kFair, 8, DType::kBF16},
                                           GroupCase{plan::DropOrder::kRandom, 128, DType::kF32},
                                           GroupCase{plan::DropOrder::kScore, 1, DType::kBF16},
                                           GroupCase{plan::DropOrder::kScore, 8, DType::kF32}),
                         [](const auto& test) {
                           return str(choice_name(plan::kDropOrderChoices, std::get<0>(test.param)),
                                      "_A", std::get<1>(test.param), "_",
                                      dtype_name(std::get<2>(test.param)));
                         });

// --- the life of a session whose group is the whole world ----------------------------------------

using LifeCase = std::tuple<ReconfigureMode, DType, int64_t>;

class WholeWorld : public ::testing::TestWithParam<LifeCase> {
 protected:
  static ReconfigureMode mode() { return std::get<0>(GetParam()); }
  World w_{World::size()};
  EpConfig config_ =
      make_config(World::size(), 3, std::get<2>(GetParam()), std::get<1>(GetParam()));
};

TEST_P(WholeWorld, GrowShrinkGrowHasTheBitsOfAFixedCapacity) {
  constexpr int kRounds = 6;
  const int64_t worst = worst_case(config_);
  const auto batch_at = [&](int round) {
    Batch batch = make_batch(w_, config_, Routing::kUnequal, static_cast<uint64_t>(round));
    Rng rng(static_cast<uint64_t>(round), static_cast<uint64_t>(w_.rank()));
    for (int64_t i = 0; i < batch.tokens.numel(); ++i) set_element(batch.tokens, i, rng.normal());
    return batch;
  };
  std::vector<std::vector<Tensor>> fixed;
  w_.session.bootstrap(config_);
  for (int round = 0; round < kRounds; ++round) {
    const Batch batch = batch_at(round);
    fixed.push_back(run_layer(w_, batch, batch.args(), false));
  }
  for (int round = 0; round < kRounds; ++round) {
    EpConfig next = config_;
    const int64_t factor[] = {3, 1, 2, 1, 5, 1};
    next.recv_capacity_per_rank = {factor[round] * worst};
    w_.session.reconfigure(next, mode());
    const Batch batch = batch_at(round);
    const auto result = run_layer(w_, batch, batch.args(), round % 2 == 0);
    for (size_t i = 0; i < result.size(); ++i) {
      EXPECT_TRUE(same_bits(result[i], fixed[static_cast<size_t>(round)][i]))
          << "round " << round << " tensor " << i;
    }
    EXPECT_EQ(w_.session.epoch(), round + 1);
  }
}

TEST_P(WholeWorld, SecondBootstrapIsAnErrorAndFinalizeIsIdempotent) {
  w_.session.finalize();
  EXPECT_EQ(w_.session.epoch(), 0);
  w_.session.bootstrap(config_);
  EXPECT_TRUE(contains(error_of([&] { w_.session.bootstrap(config_); }),
                       "the session is bootstrapped already (epoch 0); allowed: finalize first"));
  const Batch batch = make_batch(w_, config_, Routing::kUniform);
  const auto first = run_layer(w_, batch, batch.args(), false);
  for (int i = 0; i < 3; ++i) w_.session.finalize();
  EXPECT_EQ(w_.session.epoch(), 1);
  EXPECT_EQ(w_.ctx.allocator()->use(Purpose::kReceive).current_bytes, 0);
  w_.session.bootstrap(config_);
  const auto second = run_layer(w_, batch, batch.args(), true);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(first[i], second[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Grid, WholeWorld,
    ::testing::Values(LifeCase{ReconfigureMode::kBuffers, DType::kF32, 1},
                      LifeCase{ReconfigureMode::kBuffers, DType::kBF16, 128},
                      LifeCase{ReconfigureMode::kCommunicator, DType::kF32, 128},
                      LifeCase{ReconfigureMode::kCommunicator, DType::kBF16, 8}),
    [](const auto& test) {
      return str(std::get<0>(test.param) == ReconfigureMode::kBuffers ? "buffers" : "communicator",
                 "_", dtype_name(std::get<1>(test.param)), "_A", std::get<2>(test.param));
    });

}  // namespace
}  // namespace spillway::ep::test
