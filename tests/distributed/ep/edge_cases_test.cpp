// Routings at the edges, over every alignment, row dtype and drop order, split and fused, the whole
// world being one EP group: dropping to half of what the busiest rank needs, and lossless.
#include "distributed/ep/property_check.h"

#include "spillway/core/choice.h"

namespace spillway::ep::test {
namespace {

constexpr plan::DropOrder kOrders[] = {plan::DropOrder::kTail, plan::DropOrder::kFair,
                                       plan::DropOrder::kRandom, plan::DropOrder::kScore};

/// Of a token: its rank, its index, the number of ranks.
struct Place {
  int64_t rank, t, ep;
};

struct EdgeCase {
  const char* name;
  int64_t num_experts;  ///< a rank
  int64_t top_k;
  std::function<int64_t(int64_t rank, int64_t ep)> num_tokens;
  /// Choice k of a token, before `% E`; -1: none.
  std::function<int64_t(const Place&, int64_t k)> expert;
  bool overflows = true;  ///< at alignment 1 and 8
};

int64_t sixteen(int64_t, int64_t) { return 16; }
int64_t spread(const Place& p, int64_t k) { return p.rank * 3 + p.t * 5 + k; }

const EdgeCase kEdgeCases[] = {
    {"one_hot_expert", 3, 2, sixteen,
     [](const Place& p, int64_t k) { return k == 0 ? 0 : 1 + (p.t + p.rank) % (3 * p.ep - 1); }},
    {"one_hot_rank", 4, 3, sixteen,
     [](const Place& p, int64_t k) { return 4 * (p.ep - 1) + (p.t + k) % 4; }},
    {"first_rank_without_tokens", 2, 2,
     [](int64_t rank, int64_t ep) { return rank == 0 && ep > 1 ? 0 : 16; }, spread},
    {"last_rank_without_tokens", 2, 2,
     [](int64_t rank, int64_t ep) { return rank == ep - 1 && ep > 1 ? 0 : 16; }, spread},
    {"only_one_rank_with_tokens", 2, 2,
     [](int64_t rank, int64_t ep) { return rank == ep / 2 ? 40 : 0; }, spread},
    {"nobody_with_tokens", 2, 2, [](int64_t, int64_t) { return 0; }, spread, false},
    {"other_numbers_of_tokens", 2, 2, [](int64_t rank, int64_t) { return 9 + 5 * rank; }, spread},
    {"one_choice", 2, 1, [](int64_t, int64_t) { return 40; },
     [](const Place& p, int64_t) { return p.t * p.t + p.rank; }},
    {"all_experts_chosen", 1, 0, sixteen,  // K = E
     [](const Place& p, int64_t k) { return p.t + k; }},
    {"entries_that_are_none", 3, 3, [](int64_t, int64_t) { return 40; },
     [](const Place& p, int64_t k) {
       return p.t % 5 == 0 || (p.t + k) % 3 == 0 ? -1 : spread(p, k);
     }},
    {"nothing_chosen_at_all", 2, 2, sixteen, [](const Place&, int64_t) { return -1; }, false},
};

class EdgeCases : public ::testing::TestWithParam<EdgeCase> {
 protected:
  void SetUp() override { w_ = std::make_unique<World>(World::size()); }

  PropertyCase make_case(int64_t alignment, DType dtype, plan::DropOrder order, bool fused) const {
    const EdgeCase& edge = GetParam();
    const int64_t ep = w_->world->size();
    PropertyCase c;
    c.config = {.ep = ep,
                .num_experts = ep * edge.num_experts,
                .hidden = 5,
                .top_k = edge.top_k > 0 ? edge.top_k : ep * edge.num_experts,
                .alignment = alignment,
                .dtype = dtype,
                .max_tokens_per_rank = 64,
                .recv_capacity_per_rank = {alignment},
                .drop_order = order,
                .drop_seed = 3};
    for (int64_t rank = 0; rank < ep; ++rank) c.num_tokens.push_back(edge.num_tokens(rank, ep));
    c.call = {.layer = 0, .micro_batch = 2, .step = 11};
    c.fused = fused;
    return c;
  }

  std::vector<Choice> choices(const PropertyCase& c) const {
    std::vector<Choice> mine;
    for (int64_t t = 0; t < c.num_tokens[static_cast<size_t>(w_->rank())]; ++t) {
      for (int64_t k = 0; k < c.config.top_k; ++k) {
        const int64_t expert = GetParam().expert({w_->rank(), t, c.config.ep}, k);
        mine.push_back({expert < 0 ? -1 : expert % c.config.num_experts,
                        static_cast<double>(1 + (t * 3 + k + w_->rank()) % 7)});
      }
    }
    return mine;
  }

  std::unique_ptr<World> w_;
};

TEST_P(EdgeCases, DropAndLosslessAreExact) {
  int number = 0;
  for (const int64_t alignment : {1, 8, 128}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const plan::DropOrder order : kOrders) {
        PropertyCase c = make_case(alignment, dtype, order, (number++ / 2) % 2 == 0);
        const auto sources = gather_choices(*w_->world, choices(c), c.config);
        int64_t highest = 0;
        for (int64_t rank = 0; rank < c.config.ep; ++rank) {
          highest = std::max(highest, demand_of(sources, c.config, rank));
        }
        const int64_t capacity = std::max(alignment, round_down(highest / 2, alignment));
        c.config.recv_capacity_per_rank = {capacity};
        SCOPED_TRACE(describe(c));
        w_->session.finalize();
        w_->session.bootstrap(c.config);
        CheckedCall call{.w = *w_,
                         .c = c,
                         .sources = sources,
                         .sizing = Sizing::kDrop,
                         .capacity_before = capacity,
                         .capacity = capacity};
        const auto ranks = check_call(call);
        const bool dropped = std::any_of(ranks.begin(), ranks.end(),
                                         [](const RankTruth& rank) { return rank.dropped() > 0; });
        if (alignment < 128) {
          EXPECT_EQ(dropped, GetParam().overflows);
        }
        if (order != plan::DropOrder::kTail) continue;  // nothing dropped: one order is as another
        call.sizing = Sizing::kLossless;
        call.capacity = std::max(alignment, highest);
        check_call(call);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Routings, EdgeCases, ::testing::ValuesIn(kEdgeCases),
                         [](const auto& test) { return test.param.name; });

// Every token of all sources chooses expert 0, which has room for all but one source. The last has
// the lowest gates.
class OneSourceTooMany
    : public ::testing::TestWithParam<std::tuple<plan::DropOrder, int64_t, DType>> {};

TEST_P(OneSourceTooMany, LosesAllUnderTailAndScoreAndItsShareUnderFair) {
  constexpr int64_t kRows = 128;  // a source; a multiple of every alignment
  World w(World::size());
  const int64_t ep = w.world->size();
  if (ep == 1) GTEST_SKIP() << "needs a world of at least 2: one source is not one of many";
  const auto [order, alignment, dtype] = GetParam();
  PropertyCase c;
  c.config = {.ep = ep,
              .num_experts = ep,
              .hidden = 4,
              .top_k = 1,
              .alignment = alignment,
              .dtype = dtype,
              .max_tokens_per_rank = kRows,
              .recv_capacity_per_rank = {(ep - 1) * kRows},
              .drop_on_overflow = true,
              .drop_order = order,
              .drop_seed = 8};
  c.num_tokens.assign(static_cast<size_t>(ep), kRows);
  const std::vector<Choice> mine(
      kRows, Choice{.expert = 0, .gate = w.rank() == ep - 1 ? 1.0 : static_cast<double>(ep)});
  const auto sources = gather_choices(*w.world, mine, c.config);
  w.session.bootstrap(c.config);
  const int64_t capacity = w.session.capacity(0);
  const auto ranks = check_call(
      {.w = w, .c = c, .sources = sources, .capacity_before = capacity, .capacity = capacity});
  std::vector<int64_t> lost(static_cast<size_t>(ep), 0);
  for (const RoutedRow& row : ranks[0].rows) lost[static_cast<size_t>(row.source)] += !row.kept;
  const auto [least, most] = std::minmax_element(lost.begin(), lost.end());
  if (order == plan::DropOrder::kTail || order == plan::DropOrder::kScore) {
    EXPECT_EQ(lost.back(), kRows);
    EXPECT_EQ(*least, 0);
  } else if (order == plan::DropOrder::kFair) {
    EXPECT_LE(*most - *least, 1);
  } else {
    EXPECT_GT(*least, 0);
    EXPECT_LT(*most, kRows);
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, OneSourceTooMany,
                         ::testing::Combine(::testing::ValuesIn(kOrders),
                                            ::testing::Values<int64_t>(1, 8, 128),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return str(choice_name(plan::kDropOrderChoices, std::get<0>(test.param)),
                                      "_A", std::get<1>(test.param), "_",
                                      dtype_name(std::get<2>(test.param)));
                         });

}  // namespace
}  // namespace spillway::ep::test
