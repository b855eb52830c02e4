#include "spillway/plan/rank_plan.h"

#include <numeric>
#include <utility>

#include "checks.h"
#include "keep.h"
#include "spillway/core/choice.h"
#include "spillway/core/error.h"
#include "zones.h"

namespace spillway::plan {
namespace {

// One case an order; all else in a plan follows from what is kept of each cell.
KeptRows keep(const Inbox& inbox, const DropRule& rule) {
  if (!inbox.overflow()) return keep_everything(inbox);
  switch (rule.order) {
    case DropOrder::kTail:
      return keep_tail(inbox);
    case DropOrder::kFair:
      return keep_fair(inbox, rule.step);
    case DropOrder::kRandom:
      return keep_random(inbox, rule);
    case DropOrder::kScore:
      break;
  }
  throw Error(str("rank ", inbox.rank, " overflows, demand ", inbox.demand, " slots, capacity ",
                  inbox.capacity, ": under drop order '",
                  choice_name(kDropOrderChoices, rule.order),
                  "' its plan needs the rows that keep_by_score gives"));
}

void check_rows(const Inbox& inbox, const KeptRows& rows) {
  const auto num_cells = static_cast<size_t>(inbox.num_cells());
  SPILLWAY_CHECK(rows.kept.size() == num_cells, "kept has ", rows.kept.size(),
                 " entries; allowed: ep * experts per rank = ", num_cells);
  SPILLWAY_CHECK(rows.at_cut.size() == (rows.by_key ? num_cells : 0), "at_cut has ",
                 rows.at_cut.size(), " entries; allowed: ", rows.by_key ? num_cells : 0);
  for (size_t cell = 0; cell < num_cells; ++cell) {
    const auto source = static_cast<int64_t>(cell) / inbox.num_experts;
    const auto local = static_cast<int64_t>(cell) % inbox.num_experts;
    const int64_t kept = rows.kept[cell];
    SPILLWAY_CHECK(kept >= 0 && kept <= inbox.at(source, local), "kept of source ", source,
                   ", local expert ", local, " is ", kept, "; allowed: 0 to its count ",
                   inbox.at(source, local));
    SPILLWAY_CHECK(!rows.by_key || (rows.at_cut[cell] >= 0 && rows.at_cut[cell] <= kept),
                   "at_cut of source ", source, ", local expert ", local, " is ", rows.at_cut[cell],
                   "; allowed: 0 to what is kept, ", kept);
  }
}

RankPlan lay_out(const Inbox& inbox, KeptRows rows) {
  const auto experts_per_rank = static_cast<size_t>(inbox.num_experts);
  RankPlan plan;
  plan.rank = inbox.rank;
  plan.capacity = inbox.capacity;
  plan.rows = std::move(rows);
  plan.token_counts.assign(experts_per_rank, 0);
  const int64_t* kept = plan.rows.kept.data();
  for (int64_t source = 0; source < inbox.num_sources; ++source, kept += experts_per_rank) {
    for (size_t local = 0; local < experts_per_rank; ++local)
      plan.token_counts[local] += kept[local];
  }
  plan.slot_counts.resize(experts_per_rank);
  plan.zone_begin.resize(experts_per_rank);
  int64_t begin = 0, num_kept = 0;
  for (size_t local = 0; local < experts_per_rank; ++local) {
    plan.zone_begin[local] = begin;
    plan.slot_counts[local] = padded(plan.token_counts[local], inbox.alignment);
    begin += plan.slot_counts[local];
    num_kept += plan.token_counts[local];
  }
  plan.total_recv_tokens = inbox.demand;
  plan.recv_assignments = inbox.num_rows;
  plan.dropped_assignments = inbox.num_rows - num_kept;
  plan.padding_slots = begin - num_kept;
  return plan;
}

}  // namespace

Inbox::Inbox(const CountMatrix& matrix, int64_t for_rank, int64_t slots, int64_t align)
    : rank(for_rank), capacity(slots), alignment(align) {
  check_alignment(alignment);
  SPILLWAY_CHECK(capacity >= 0 && (capacity & (alignment - 1)) == 0, "capacity is ", capacity,
                 " slots; allowed: a multiple of the alignment ", alignment, ", not negative");
  routed = routed_per_expert(matrix, rank);  // checks matrix and rank
  num_sources = matrix.ep;
  num_experts = static_cast<int64_t>(routed.size());
  stride = matrix.num_experts;
  counts = matrix.counts.data() + rank * num_experts;
  for (const int64_t rows : routed) {
    num_rows += rows;
    demand += padded(rows, alignment);
  }
}

KeptRows keep_everything(const Inbox& inbox) {
  KeptRows rows;
  rows.kept.reserve(static_cast<size_t>(inbox.num_cells()));
  for (int64_t source = 0; source < inbox.num_sources; ++source) {
    const int64_t* row = inbox.row(source);
    rows.kept.insert(rows.kept.end(), row, row + inbox.num_experts);
  }
  return rows;
}

int64_t RankPlan::num_slots() const {
  return slot_counts.empty() ? 0 : zone_begin.back() + slot_counts.back();
}

int64_t RankPlan::source_begin(int64_t source, int64_t local_expert) const {
  int64_t begin = zone_begin[static_cast<size_t>(local_expert)];
  for (int64_t lower = 0; lower < source; ++lower) begin += kept_at(lower, local_expert);
  return begin;
}

RankPlan plan_rank(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                   const DropRule& rule) {
  const Inbox inbox(matrix, rank, capacity, alignment);
  return lay_out(inbox, keep(inbox, rule));
}

RankPlan plan_rank(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                   KeptRows rows) {
  const Inbox inbox(matrix, rank, capacity, alignment);
  check_rows(inbox, rows);
  RankPlan plan = lay_out(inbox, std::move(rows));
  SPILLWAY_CHECK(plan.num_slots() <= capacity, "the rows kept on rank ", rank, " need ",
                 plan.num_slots(), " slots; allowed: the capacity ", capacity);
  return plan;
}

}  // namespace spillway::plan
