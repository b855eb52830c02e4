#pragma once
// Drops by score: the gates stay with their sources, histograms of them are exchanged.

#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/ep/session.h"
#include "spillway/plan/count_matrix.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::ep {

/// What the ranks of the group that overflow keep, [ep]; empty KeptRows for those that do not.
/// `demand_slots` [ep]. Two all-gathers of [overflowing ranks, L, 256] counts, the second of the
/// bins at which each rank's prefix ends; every rank of the group takes part, and no exchange is
/// made at ep = 1. Not to be called when nobody overflows.
std::vector<plan::KeptRows> exchange_scores(Context& ctx, const comm::Topology& topology,
                                            const EpConfig& config, const PrepareArgs& args,
                                            const plan::CountMatrix& matrix, int64_t capacity,
                                            const std::vector<int64_t>& demand_slots);

}  // namespace spillway::ep
