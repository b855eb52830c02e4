#pragma once
// From the count matrix of a call to its routing handle and ledger: no communication. What
// `Session::prepare` does on every rank once the counts are exchanged.

#include <span>
#include <vector>

#include "spillway/ep/session.h"
#include "spillway/plan/count_matrix.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::ep {

struct PlanCallArgs {
  const PrepareArgs& prepare;
  /// Of the group; the row of `ep_rank` is what kernels::count_experts finds in its topk_idx.
  const plan::CountMatrix& matrix;
  int64_t ep_rank = 0;
  int64_t capacity = 0;  ///< C of the call, in slots
  /// kScore: what each rank keeps, [ep], read for those that overflow. Other orders: empty.
  std::span<const plan::KeptRows> by_score = {};
};

struct CallPlan {
  RoutingHandle handle;  ///< maps and counts; header and life are left to the session
  Ledger ledger;         ///< N, capacities and bytes likewise
};

/// Plans all ranks of the group, builds the maps of this one and adds up what the call drops.
/// Throws what plan::plan_rank throws.
CallPlan plan_call(Context& ctx, const EpConfig& config, const PlanCallArgs& args);

}  // namespace spillway::ep
