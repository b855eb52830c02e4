// What prepare reports, against counting by hand: demand, counts and the ledger.
#include "distributed/ep/fixture.h"

namespace spillway::ep::test {
namespace {

struct Case {
  int ep;
  int64_t alignment;
  bool drop;
};

/// Tight where it drops, else lossless.
EpConfig config_of(const Case& c) {
  EpConfig config = make_config(c.ep, 2, c.alignment);
  config.drop_on_overflow = c.drop;
  if (c.drop) config.recv_capacity_per_rank = {tight_capacity(config)};
  return config;
}

class Demand : public ::testing::TestWithParam<Case> {};

constexpr Routing kAllRoutings[] = {Routing::kUniform, Routing::kHotExpert,    Routing::kHotRank,
                                    Routing::kHoles,   Routing::kEmptyExperts, Routing::kZeroRank,
                                    Routing::kAllZero, Routing::kUnequal};

TEST_P(Demand, EqualsABruteForceCount) {
  const auto [ep, alignment, drop] = GetParam();
  SKIP_UNLESS_EP_FITS(ep);
  World w(ep);
  const EpConfig config = config_of(GetParam());
  const int64_t capacity = config.recv_capacity_per_rank[0];
  w.session.bootstrap(config);
  int64_t dropped_in_all = 0;
  for (const Routing routing : kAllRoutings) {
    SCOPED_TRACE(static_cast<int>(routing));
    const Batch batch = make_batch(w, config, routing);
    const auto ranks = make_reference(w, config, batch.topk_idx, capacity);
    const PrepareResult result = w.session.prepare(batch.args());
    const RankReference& here = ranks[static_cast<size_t>(w.topology.ep_rank())];
    EXPECT_EQ(result.total_recv_tokens, here.demand);
    EXPECT_EQ(result.recv_assignments, static_cast<int64_t>(here.assignments.size()));
    EXPECT_EQ(result.token_counts, here.token_counts);
    EXPECT_EQ(result.slot_counts, here.slot_counts);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(result.ledger.total_recv_tokens[rank], ranks[rank].demand);
      EXPECT_EQ(result.ledger.recv_assignments[rank],
                static_cast<int64_t>(ranks[rank].assignments.size()));
      EXPECT_EQ(result.ledger.dropped_assignments[rank], ranks[rank].dropped());
      // Overflow on a rank exactly when that rank drops.
      EXPECT_EQ(ranks[rank].demand > capacity, ranks[rank].dropped() > 0);
      dropped_in_all += ranks[rank].dropped();
    }
  }
  if (drop && alignment < 128) {
    EXPECT_GT(dropped_in_all, 0) << "this case was to overflow";
  } else if (!drop) {
    EXPECT_EQ(dropped_in_all, 0);
  }
}

TEST_P(Demand, LedgerAddsUp) {
  const auto [ep, alignment, drop] = GetParam();
  SKIP_UNLESS_EP_FITS(ep);
  World w(ep);
  const EpConfig config = config_of(GetParam());
  const int64_t capacity = config.recv_capacity_per_rank[0];
  w.session.bootstrap(config);
  for (const Routing routing : kAllRoutings) {
    SCOPED_TRACE(static_cast<int>(routing));
    const Batch batch = make_batch(w, config, routing);
    const auto ranks = make_reference(w, config, batch.topk_idx, capacity);
    const Ledger ledger = w.session.prepare(batch.args()).ledger;

    std::vector<int64_t> by_source(ranks.size(), 0), by_expert, expert_tokens;
    std::vector<int64_t> kept_of_token(static_cast<size_t>(batch.topk_idx.dim(0)), 0);
    double mass = 0, dropped_mass = 0;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      std::vector<int64_t> routed(ranks[rank].token_counts.size(), 0), lost = routed;
      for (size_t i = 0; i < ranks[rank].assignments.size(); ++i) {
        const Assignment& a = ranks[rank].assignments[i];
        const bool kept = i < ranks[rank].num_kept;
        ++routed[static_cast<size_t>(a.expert)];
        if (!kept) ++lost[static_cast<size_t>(a.expert)];
        if (!kept) ++by_source[static_cast<size_t>(a.source)];
        if (a.source != w.topology.ep_rank()) continue;
        const double gate = gate_value(global_token(w.rank(), a.t), a.k);
        mass += gate;
        if (!kept) dropped_mass += gate;
        if (kept) ++kept_of_token[static_cast<size_t>(a.t)];
      }
      expert_tokens.insert(expert_tokens.end(), routed.begin(), routed.end());
      by_expert.insert(by_expert.end(), lost.begin(), lost.end());
      const int64_t slots = std::accumulate(ranks[rank].slot_counts.begin(),
                                            ranks[rank].slot_counts.end(), int64_t{0});
      EXPECT_EQ(ledger.slot_counts_sum[rank], slots);
      EXPECT_LE(slots, capacity);
      EXPECT_EQ(ledger.padding_slots[rank], slots - static_cast<int64_t>(ranks[rank].num_kept));
    }
    int64_t fully_dropped = 0, group_tokens = 0;
    for (int64_t t = 0; t < batch.topk_idx.dim(0); ++t) {
      bool had = false;
      for (int64_t k = 0; k < config.top_k; ++k) {
        had = had || batch.topk_idx.data<int32_t>()[t * config.top_k + k] >= 0;
      }
      fully_dropped += had && kept_of_token[static_cast<size_t>(t)] == 0 ? 1 : 0;
    }
    for (int rank = w.first_rank(); rank < w.first_rank() + ep; ++rank) {
      group_tokens += tokens_on(routing, rank, w.world->size());
    }
    EXPECT_EQ(ledger.dropped_by_source, by_source);
    EXPECT_EQ(ledger.dropped_by_expert, by_expert);
    EXPECT_EQ(ledger.expert_tokens, expert_tokens);
    EXPECT_EQ(ledger.fully_dropped_tokens, fully_dropped);
    EXPECT_EQ(ledger.group_tokens, group_tokens);
    EXPECT_EQ(ledger.gate_mass, mass);
    EXPECT_EQ(ledger.dropped_gate_mass, dropped_mass);
    EXPECT_EQ(ledger.capacity_begin, capacity);
    EXPECT_EQ(ledger.capacity_end, capacity);
    EXPECT_EQ(ledger.recv_buffer_bytes, capacity * (kHidden * 4 + 4));
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int ep : {1, 2, 4}) {
    for (const int64_t alignment : {1, 8, 128}) {
      for (const bool drop : {false, true}) cases.push_back({ep, alignment, drop});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Grid, Demand, ::testing::ValuesIn(all_cases()), [](const auto& test) {
  return str("ep", test.param.ep, "_A", test.param.alignment,
             test.param.drop ? "_drop" : "_lossless");
});

}  // namespace
}  // namespace spillway::ep::test
