#include "spillway/ep/plan_call.h"

#include "maps.h"

namespace spillway::ep {
namespace {

std::vector<plan::RankPlan> plan_ranks(const EpConfig& config, const PlanCallArgs& args) {
  const plan::DropRule rule = drop_rule(config, args.prepare.call);
  std::vector<plan::RankPlan> plans;
  plans.reserve(static_cast<size_t>(config.ep));
  for (int64_t rank = 0; rank < config.ep; ++rank) {
    const auto index = static_cast<size_t>(rank);
    const bool scored = index < args.by_score.size() && !args.by_score[index].kept.empty();
    plans.push_back(
        scored ? plan::plan_rank(args.matrix, rank, args.capacity, config.alignment,
                                 args.by_score[index])
               : plan::plan_rank(args.matrix, rank, args.capacity, config.alignment, rule));
  }
  return plans;
}

}  // namespace

CallPlan plan_call(Context& ctx, const EpConfig& config, const PlanCallArgs& args) {
  const std::vector<plan::RankPlan> plans = plan_ranks(config, args);
  CallPlan result;
  const bool any_dropped = build_maps(ctx, config, args, plans, result.handle);
  result.ledger = make_ledger(ctx, args, plans, result.handle, any_dropped);
  return result;
}

}  // namespace spillway::ep
