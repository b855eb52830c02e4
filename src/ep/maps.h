#pragma once

#include <vector>

#include "spillway/ep/plan_call.h"

namespace spillway::ep {

/// The drop order of a call with what it draws on.
plan::DropRule drop_rule(const EpConfig& config, const Call& call);

/// Fills the maps and the counts of `handle` from the plans of all ranks of the group. Returns
/// whether an assignment of this rank is dropped anywhere.
bool build_maps(Context& ctx, const EpConfig& config, const PlanCallArgs& args,
                const std::vector<plan::RankPlan>& plans, RoutingHandle& handle);

/// What a call drops: counts before drops (the matrix) and after (`plans`), and by the maps of
/// `handle` the tokens and gates of this rank.
Ledger make_ledger(Context& ctx, const PlanCallArgs& args, const std::vector<plan::RankPlan>& plans,
                   const RoutingHandle& handle, bool any_dropped);

}  // namespace spillway::ep
