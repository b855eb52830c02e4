#include "maps.h"

#include <numeric>

namespace spillway::ep {
namespace {

constexpr int64_t kNone = -1;

// A cell is a global expert id: (rank, local expert) in rank-major order.
struct Cells {
  std::vector<int64_t> kept;         // rows of mine kept
  std::vector<int64_t> send_begin;   // first send row; of cells elsewhere
  std::vector<int64_t> local_begin;  // first entry of the local maps; of cells here
  std::vector<int64_t> slot_begin;   // first slot; of cells here
  int64_t num_sent = 0;              // R
  int64_t num_local = 0;             // M
};

Cells lay_out(int64_t rank, const std::vector<plan::RankPlan>& plans) {
  const size_t experts_per_rank = plans[0].slot_counts.size();
  Cells cells;
  for (const plan::RankPlan& plan : plans) {
    for (size_t local = 0; local < experts_per_rank; ++local) {
      const auto expert = static_cast<int64_t>(local);
      const int64_t kept = plan.kept_at(rank, expert);
      const bool here = plan.rank == rank;
      cells.kept.push_back(kept);
      cells.send_begin.push_back(cells.num_sent);
      cells.local_begin.push_back(cells.num_local);
      cells.slot_begin.push_back(here ? plan.source_begin(rank, expert) : kNone);
      (here ? cells.num_local : cells.num_sent) += kept;
    }
  }
  return cells;
}

Tensor index_tensor(Context& ctx, const Shape& shape) {
  return Tensor::empty(ctx, shape, DType::kI64, Purpose::kActivations);
}

// Gates of this rank's assignments: all, and those that were dropped.
template <typename T>
void add_gates(const Tensor& gate, const int32_t* ids, const int64_t* row_of, Ledger& ledger) {
  const T* gates = gate.data<T>();
  for (int64_t i = 0; i < gate.numel(); ++i) {
    if (ids[i] < 0) continue;
    ledger.gate_mass += static_cast<double>(gates[i]);
    if (row_of[i] == kNone) ledger.dropped_gate_mass += static_cast<double>(gates[i]);
  }
}

int64_t count_fully_dropped(const Tensor& topk_idx, const int64_t* row_of) {
  const int32_t* ids = topk_idx.data<int32_t>();
  const int64_t top_k = topk_idx.dim(1);
  int64_t fully_dropped = 0;
  for (int64_t t = 0; t < topk_idx.dim(0); ++t) {
    bool had = false, kept = false;
    for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
      had = had || ids[i] >= 0;
      kept = kept || row_of[i] != kNone;
    }
    fully_dropped += had && !kept ? 1 : 0;
  }
  return fully_dropped;
}

}  // namespace

void build_maps(Context& ctx, const Tensor& topk_idx, int64_t rank,
                const std::vector<plan::RankPlan>& plans, RoutingHandle& handle) {
  const Cells cells = lay_out(rank, plans);
  handle.send_assignment = index_tensor(ctx, {cells.num_sent});
  handle.local_assignment = index_tensor(ctx, {cells.num_local});
  handle.local_slot = index_tensor(ctx, {cells.num_local});
  handle.row_of = index_tensor(ctx, topk_idx.shape());
  int64_t* send_assignment = handle.send_assignment.data<int64_t>();
  int64_t* local_assignment = handle.local_assignment.data<int64_t>();
  int64_t* local_slot = handle.local_slot.data<int64_t>();
  int64_t* row_of = handle.row_of.data<int64_t>();
  const int32_t* ids = topk_idx.data<int32_t>();
  std::vector<int64_t> ordinals(cells.kept.size(), 0);
  for (int64_t i = 0; i < topk_idx.numel(); ++i) {
    row_of[i] = kNone;
    if (ids[i] < 0) continue;
    const auto cell = static_cast<size_t>(ids[i]);
    const int64_t ordinal = ordinals[cell]++;
    if (ordinal >= cells.kept[cell]) continue;  // dropped: never sent
    if (cells.slot_begin[cell] == kNone) {
      row_of[i] = cells.send_begin[cell] + ordinal;
      send_assignment[row_of[i]] = i;
    } else {
      const int64_t slot = cells.slot_begin[cell] + ordinal;
      const int64_t entry = cells.local_begin[cell] + ordinal;
      local_assignment[entry] = i;
      local_slot[entry] = slot;
      row_of[i] = cells.num_sent + slot;
    }
  }
  const plan::RankPlan& own = plans[static_cast<size_t>(rank)];
  handle.send_counts = cells.kept;
  handle.recv_counts = own.rows.kept;
  handle.token_counts = own.token_counts;
  handle.slot_counts = own.slot_counts;
  handle.zone_begin = own.zone_begin;
}

Ledger make_ledger(const plan::CountMatrix& matrix, const std::vector<plan::RankPlan>& plans,
                   const PrepareArgs& args, const RoutingHandle& handle) {
  Ledger ledger;
  ledger.dropped_by_source.assign(plans.size(), 0);
  for (const plan::RankPlan& plan : plans) {
    ledger.total_recv_tokens.push_back(plan.total_recv_tokens);
    ledger.recv_assignments.push_back(plan.recv_assignments);
    ledger.slot_counts_sum.push_back(plan.num_slots());
    ledger.padding_slots.push_back(plan.padding_slots);
    ledger.dropped_assignments.push_back(plan.dropped_assignments);
    const auto experts_per_rank = static_cast<int64_t>(plan.slot_counts.size());
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      const int64_t expert = plan.rank * experts_per_rank + local;
      int64_t routed = 0;
      for (int64_t source = 0; source < matrix.ep; ++source) {
        routed += matrix.at(source, expert);
        ledger.dropped_by_source[static_cast<size_t>(source)] +=
            matrix.at(source, expert) - plan.kept_at(source, local);
      }
      ledger.expert_tokens.push_back(routed);
      ledger.dropped_by_expert.push_back(routed - plan.token_counts[static_cast<size_t>(local)]);
    }
  }
  const int64_t* row_of = handle.row_of.data<int64_t>();
  const int32_t* ids = args.topk_idx.data<int32_t>();
  ledger.fully_dropped_tokens = count_fully_dropped(args.topk_idx, row_of);
  if (args.gate.dtype() == DType::kF32) {
    add_gates<float>(args.gate, ids, row_of, ledger);
  } else {
    add_gates<double>(args.gate, ids, row_of, ledger);
  }
  return ledger;
}

}  // namespace spillway::ep
