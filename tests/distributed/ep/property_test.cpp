// Random routing under every drop order: what is kept, where it lands, what comes back, what is
// counted and reported, each against a slow reference. One session an EP size lives through all
// cases of a test: other capacities, numbers of experts and hidden sizes in one process.
#include "distributed/ep/property_check.h"

#include "spillway/core/choice.h"

namespace spillway::ep::test {
namespace {

constexpr uint64_t kOrders = 4;

/// Of all orders together. Eight ranks share two cores.
uint64_t num_cases(int world_size) {
  if (world_size >= 8) return 1000;
  return world_size >= 4 ? 1600 : 2000;
}

class Property : public ::testing::TestWithParam<plan::DropOrder> {
 protected:
  World& world_of(int64_t ep) {
    auto& world = worlds_[ep];
    if (world == nullptr) world = std::make_unique<World>(static_cast<int>(ep));
    return *world;
  }
  void run_case(uint64_t seed);
  void second_pass(const CheckedCall& first, int64_t group_demand);

  std::map<int64_t, std::unique_ptr<World>> worlds_;
  int num_overflowing_ = 0;
  int num_dropping_here_ = 0;
};

void Property::run_case(uint64_t seed) {
  const int world_size = World::size();
  PropertyCase c = draw_case(seed, world_size, GetParam());
  World& w = world_of(c.config.ep);
  const auto everyone = gather_choices(*w.world, draw_choices(c, w.rank()), c.config);
  const auto group_of = [&](int64_t first_rank) {
    return std::vector<std::vector<Choice>>(everyone.begin() + first_rank,
                                            everyone.begin() + first_rank + c.config.ep);
  };
  int64_t highest = 0, group_demand = 0;
  for (int64_t first = 0; first < world_size; first += c.config.ep) {
    for (int64_t rank = 0; rank < c.config.ep; ++rank) {
      const int64_t demand = demand_of(group_of(first), c.config, rank);
      highest = std::max(highest, demand);
      if (first == w.first_rank()) group_demand = std::max(group_demand, demand);
    }
  }
  draw_capacities(c, highest);
  SCOPED_TRACE(str(describe(c), "\nalone: --gtest_filter=*Property.* --gtest_random_seed=", seed,
                   " on ", world_size, " ranks"));
  w.session.finalize();
  w.session.bootstrap(c.config);
  const int64_t capacity = w.session.capacity(c.call.layer);
  const auto sources = group_of(w.first_rank());
  const CheckedCall call{.w = w,
                         .c = c,
                         .sources = sources,
                         .sizing = c.config.drop_on_overflow ? Sizing::kLive : Sizing::kDrop,
                         .capacity_before = capacity,
                         .capacity = capacity,
                         .deep_copy = seed % 3 != 0};
  const std::vector<RankTruth> ranks = check_call(call);
  num_overflowing_ += highest > capacity ? 1 : 0;
  num_dropping_here_ += ranks[static_cast<size_t>(w.topology.ep_rank())].dropped() > 0 ? 1 : 0;
  if (c.second != SecondPass::kNone) second_pass(call, group_demand);
  EXPECT_EQ(w.session.live_handles(), 0);
}

// The same call once more, lossless or failing.
void Property::second_pass(const CheckedCall& first, int64_t group_demand) {
  const PropertyCase& c = first.c;
  World& w = first.w;
  CheckedCall call = first;
  if (c.second == SecondPass::kLossless) {
    call.sizing = Sizing::kLossless;
    call.capacity = std::max(c.config.alignment, group_demand);
    check_call(call);
    EXPECT_EQ(w.session.capacity(c.call.layer), first.capacity);
    return;
  }
  call.sizing = Sizing::kLive;
  const bool overflows = group_demand > first.capacity;
  if (c.second == SecondPass::kFail && overflows) {
    const Batch batch = batch_of(w, c, call.sources[static_cast<size_t>(w.topology.ep_rank())]);
    const PrepareArgs args{.call = c.call, .topk_idx = batch.topk_idx, .gate = batch.gate};
    try {
      w.session.prepare(args);
      FAIL() << "nothing was thrown";
    } catch (const OverflowError& error) {
      EXPECT_TRUE(
          contains(error.what(), str("demand ", group_demand, " slots capacity ", first.capacity,
                                     " slots, smallest that fits ", group_demand, ":")));
    }
    return;
  }
  // Grows where this group must, and nowhere else.
  const double margin = overflows ? c.config.grow_margin : 0.0;
  call.capacity = first.capacity;
  if (overflows) {
    const auto grown =
        static_cast<int64_t>(std::ceil(static_cast<double>(group_demand) * (1.0 + margin) - 1e-6));
    call.capacity = std::min(worst_case(c.config), round_up(grown, c.config.alignment));
    EXPECT_GE(call.capacity, group_demand);
  }
  const std::vector<RankTruth> ranks = check_call(call);
  for (const RankTruth& rank : ranks) EXPECT_EQ(rank.dropped(), 0);
  for (size_t layer = 0; layer < c.config.recv_capacity_per_rank.size(); ++layer) {
    const auto index = static_cast<int64_t>(layer);
    EXPECT_EQ(w.session.capacity(index),
              index == c.call.layer ? call.capacity : c.config.recv_capacity_per_rank[layer]);
  }
}

TEST_P(Property, HoldsForRandomRouting) {
  const auto order = static_cast<uint64_t>(GetParam());
  // One case alone, when the program is told its seed.
  const auto only = static_cast<uint64_t>(GTEST_FLAG_GET(random_seed));
  if (only != 0) {
    if (only % kOrders != order) GTEST_SKIP() << "the seed is one of another order";
    run_case(only);
    return;
  }
  int num_run = 0;
  const uint64_t last = num_cases(World::size());
  for (uint64_t seed = kOrders + order; seed < kOrders + last; seed += kOrders) {
    run_case(seed);
    ++num_run;
  }
  // Half of them at least, and a fair share on this very rank.
  EXPECT_GE(2 * num_overflowing_, num_run);
  EXPECT_GE(8 * num_dropping_here_, num_run);
}

INSTANTIATE_TEST_SUITE_P(Orders, Property,
                         ::testing::Values(plan::DropOrder::kTail, plan::DropOrder::kFair,
                                           plan::DropOrder::kRandom, plan::DropOrder::kScore),
                         [](const auto& test) {
                           return std::string(choice_name(plan::kDropOrderChoices, test.param));
                         });

}  // namespace
}  // namespace spillway::ep::test
