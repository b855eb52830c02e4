#include "maps.h"

#include "spillway/kernels/dispatch_maps.h"

namespace spillway::ep {
namespace {

using kernels::ExpertRows;

// The rows of one rank to all experts, in rank-major order.
struct SourceRows {
  std::vector<ExpertRows> experts;
  std::vector<int64_t> kept;  // of each expert
  int64_t num_sent = 0;       // R
  int64_t num_local = 0;      // M
  bool any_dropped = false;
};

SourceRows lay_out(const EpConfig& config, const PlanCallArgs& args,
                   const std::vector<plan::RankPlan>& plans) {
  const int64_t rank = args.ep_rank;
  const int64_t experts_per_rank = args.matrix.experts_per_rank();
  const plan::DropRule rule = drop_rule(config, args.prepare.call);
  SourceRows source;
  source.experts.reserve(static_cast<size_t>(args.matrix.num_experts));
  for (const plan::RankPlan& plan : plans) {
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      const int64_t expert = plan.rank * experts_per_rank + local;
      ExpertRows rows{.routed = args.matrix.at(rank, expert), .kept = plan.kept_at(rank, local)};
      rows.local = plan.rank == rank;
      int64_t& next = rows.local ? source.num_local : source.num_sent;
      rows.first_entry = next;
      rows.first_row = rows.local ? plan.source_begin(rank, local) : next;
      next += rows.kept;
      source.any_dropped = source.any_dropped || rows.kept < rows.routed;
      // A cell that is kept or lost as a whole needs no keys.
      rows.by_key = plan.rows.by_key && rows.kept < rows.routed && rows.kept > 0;
      if (rows.by_key) {
        rows.cut = plan.rows.cut;
        rows.at_cut = plan.rows.at_cut[static_cast<size_t>(rank * experts_per_rank + local)];
        if (rule.order == plan::DropOrder::kRandom) {
          rows.hash_state = plan::random_cell_state(rule, expert, rank);
        }
      }
      source.kept.push_back(rows.kept);
      source.experts.push_back(rows);
    }
  }
  // Rows of this rank's own slots are numbered after those sent.
  for (ExpertRows& rows : source.experts) {
    if (rows.local) rows.first_row += source.num_sent;
  }
  return source;
}

kernels::KeepKey key_of(plan::DropOrder order) {
  switch (order) {
    case plan::DropOrder::kRandom:
      return kernels::KeepKey::kHash;
    case plan::DropOrder::kScore:
      return kernels::KeepKey::kScore;
    default:
      return kernels::KeepKey::kOrdinal;
  }
}

Tensor index_tensor(Context& ctx, const Shape& shape) {
  return Tensor::empty(ctx, shape, kIndexType, Purpose::kActivations);
}

// Routed and dropped by expert and by source, of one receiving rank.
void add_rank(const plan::CountMatrix& matrix, const plan::RankPlan& plan, Ledger& ledger) {
  ledger.total_recv_tokens.push_back(plan.total_recv_tokens);
  ledger.recv_assignments.push_back(plan.recv_assignments);
  ledger.slot_counts_sum.push_back(plan.num_slots());
  ledger.padding_slots.push_back(plan.padding_slots);
  ledger.dropped_assignments.push_back(plan.dropped_assignments);
  const size_t first = ledger.expert_tokens.size();
  ledger.expert_tokens.insert(ledger.expert_tokens.end(), plan.token_counts.begin(),
                              plan.token_counts.end());
  ledger.dropped_by_expert.resize(ledger.expert_tokens.size(), 0);
  if (plan.dropped_assignments == 0) return;
  const auto experts_per_rank = static_cast<int64_t>(plan.token_counts.size());
  for (int64_t source = 0; source < matrix.ep; ++source) {
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      const int64_t expert = plan.rank * experts_per_rank + local;
      const int64_t dropped = matrix.at(source, expert) - plan.kept_at(source, local);
      const size_t index = first + static_cast<size_t>(local);
      ledger.dropped_by_source[static_cast<size_t>(source)] += dropped;
      ledger.dropped_by_expert[index] += dropped;
      ledger.expert_tokens[index] += dropped;
    }
  }
}

}  // namespace

plan::DropRule drop_rule(const EpConfig& config, const Call& call) {
  return {.order = config.drop_order,
          .seed = config.drop_seed,
          .step = call.step,
          .micro_batch = call.micro_batch,
          .layer = call.layer};
}

bool build_maps(Context& ctx, const EpConfig& config, const PlanCallArgs& args,
                const std::vector<plan::RankPlan>& plans, RoutingHandle& handle) {
  SourceRows source = lay_out(config, args, plans);
  const Tensor& topk_idx = args.prepare.topk_idx;
  handle.send_assignment = index_tensor(ctx, {source.num_sent});
  handle.local_assignment = index_tensor(ctx, {source.num_local});
  handle.local_slot = index_tensor(ctx, {source.num_local});
  handle.row_of = index_tensor(ctx, topk_idx.shape());
  kernels::dispatch_maps(ctx, {.topk_idx = topk_idx,
                               .gate = args.prepare.gate,
                               .experts = source.experts,
                               .key = key_of(config.drop_order),
                               .row_of = handle.row_of,
                               .send_assignment = handle.send_assignment,
                               .local_assignment = handle.local_assignment,
                               .local_slot = handle.local_slot});
  if (config.renormalize_kept && source.any_dropped) handle.topk_idx = topk_idx.clone(ctx);
  const plan::RankPlan& own = plans[static_cast<size_t>(args.ep_rank)];
  handle.send_counts = std::move(source.kept);
  handle.recv_counts = own.rows.kept;
  handle.token_counts = own.token_counts;
  handle.slot_counts = own.slot_counts;
  handle.zone_begin = own.zone_begin;
  return source.any_dropped;
}

Ledger make_ledger(Context& ctx, const PlanCallArgs& args, const std::vector<plan::RankPlan>& plans,
                   const RoutingHandle& handle, bool any_dropped) {
  Ledger ledger;
  ledger.dropped_by_source.assign(plans.size(), 0);
  for (const plan::RankPlan& plan : plans) add_rank(args.matrix, plan, ledger);
  Tensor sums = Tensor::empty(ctx, {3}, DType::kF64, Purpose::kWorkspace);
  kernels::dropped_sums(ctx, {.topk_idx = args.prepare.topk_idx,
                              .gate = args.prepare.gate,
                              .row_of = handle.row_of,
                              .any_dropped = any_dropped,
                              .sums = sums});
  ledger.gate_mass = sums.data<double>()[0];
  ledger.dropped_gate_mass = sums.data<double>()[1];
  ledger.fully_dropped_tokens = static_cast<int64_t>(sums.data<double>()[2]);
  return ledger;
}

}  // namespace spillway::ep
