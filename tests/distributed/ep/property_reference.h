#pragma once
// What a dispatch must do under each drop order: slow, readable, made over a plain all-gather of
// what every rank chose. Nothing here calls the planner.
//
// T tokens of a rank, K choices a token, E experts, L experts a rank, C slots, A alignment.

#include <vector>

#include "distributed/ep/fixture.h"

namespace spillway::ep::test {

/// Entry [t,k] of a router: expert -1 is none.
struct Choice {
  int64_t expert = -1;
  double gate = 0.0;
};

/// Choices of each rank of the world, [T*K] each, by one all-gather.
std::vector<std::vector<Choice>> gather_choices(comm::Communicator& world,
                                                const std::vector<Choice>& mine,
                                                const EpConfig& config);

/// One assignment of a receiving rank.
struct RoutedRow {
  int64_t local_expert = 0;
  int64_t source = 0;  ///< rank of the group
  int64_t t = 0;
  int64_t k = 0;
  int64_t ordinal = 0;            ///< within its (source, expert), in token order
  int64_t ordinal_of_source = 0;  ///< within its source, in tail order
  double gate = 0.0;
  bool kept = false;
  int64_t slot = -1;  ///< -1: dropped
};

struct RankTruth {
  std::vector<RoutedRow> rows;  ///< all that is routed here, in tail order
  int64_t demand = 0;           ///< slots
  int64_t num_kept = 0;
  std::vector<int64_t> token_counts, slot_counts, zone_begin;  ///< [L]

  int64_t dropped() const { return static_cast<int64_t>(rows.size()) - num_kept; }
  int64_t num_slots() const;
};

/// Slots that a rank needs for all that `sources` (the ranks of its group) route to it.
int64_t demand_of(const std::vector<std::vector<Choice>>& sources, const EpConfig& config,
                  int64_t rank);

/// What each rank of the group of `sources` keeps at `capacity`, and where.
std::vector<RankTruth> make_truth(const std::vector<std::vector<Choice>>& sources,
                                  const EpConfig& config, const Call& call, int64_t capacity);

}  // namespace spillway::ep::test
