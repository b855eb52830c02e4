#pragma once

#include <vector>

#include "spillway/ep/session.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::ep {

/// Fills the maps and the counts of `handle` from the plans of all ranks of the group. One pass
/// over topk_idx in token order; of each (rank, local expert) the first `kept` are kept.
void build_maps(Context& ctx, const Tensor& topk_idx, int64_t rank,
                const std::vector<plan::RankPlan>& plans, RoutingHandle& handle);

/// What a call drops: counts before drops (`matrix`) and after (`plans`), and by the maps of
/// `handle` the tokens and gates of this rank. The caller adds N, capacities and bytes.
Ledger make_ledger(const plan::CountMatrix& matrix, const std::vector<plan::RankPlan>& plans,
                   const PrepareArgs& args, const RoutingHandle& handle);

}  // namespace spillway::ep
