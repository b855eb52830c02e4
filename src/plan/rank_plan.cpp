#include "spillway/plan/rank_plan.h"

#include <algorithm>
#include <numeric>

#include "checks.h"
#include "spillway/core/choice.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {
namespace {

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// kept [S, L] under the order (local expert, source, ordinal): whole experts while they fit, then
// one expert's first rows, then nothing. `capacity` is a multiple of A, so an expert that does not
// fit has more rows than slots are free, and its rows fill them without padding.
std::vector<int64_t> keep_tail(const CountMatrix& matrix, int64_t rank,
                               const std::vector<int64_t>& routed, int64_t capacity,
                               int64_t alignment) {
  const int64_t experts_per_rank = matrix.experts_per_rank();
  std::vector<int64_t> kept(static_cast<size_t>(matrix.ep * experts_per_rank), 0);
  int64_t free_slots = capacity;
  for (int64_t local = 0; local < experts_per_rank; ++local) {
    const int64_t zone = round_up(routed[static_cast<size_t>(local)], alignment);
    const bool fits = zone <= free_slots;
    int64_t left = fits ? routed[static_cast<size_t>(local)] : free_slots;
    for (int64_t source = 0; source < matrix.ep && left > 0; ++source) {
      const int64_t taken = std::min(left, matrix.at(source, rank * experts_per_rank + local));
      kept[static_cast<size_t>(source * experts_per_rank + local)] = taken;
      left -= taken;
    }
    if (!fits) break;
    free_slots -= zone;
  }
  return kept;
}

// One function an order; all else in a plan follows from what is kept of each cell.
std::vector<int64_t> keep(const CountMatrix& matrix, int64_t rank,
                          const std::vector<int64_t>& routed, int64_t capacity, int64_t alignment,
                          DropOrder order) {
  if (order == DropOrder::kTail) return keep_tail(matrix, rank, routed, capacity, alignment);
  throw Error(
      str("drop order '", choice_name(kDropOrderChoices, order), "' is not available: only tail"));
}

}  // namespace

int64_t RankPlan::num_slots() const { return sum(slot_counts); }

int64_t RankPlan::source_begin(int64_t source, int64_t local_expert) const {
  int64_t begin = zone_begin[static_cast<size_t>(local_expert)];
  for (int64_t lower = 0; lower < source; ++lower) begin += kept_at(lower, local_expert);
  return begin;
}

RankPlan plan_rank(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                   DropOrder order) {
  check_alignment(alignment);
  SPILLWAY_CHECK(capacity >= 0 && capacity % alignment == 0, "capacity is ", capacity,
                 " slots; allowed: a multiple of the alignment ", alignment, ", not negative");
  const std::vector<int64_t> routed = routed_per_expert(matrix, rank);

  RankPlan plan;
  plan.rank = rank;
  plan.capacity = capacity;
  plan.kept = keep(matrix, rank, routed, capacity, alignment, order);
  const size_t experts_per_rank = routed.size();
  plan.token_counts.assign(experts_per_rank, 0);
  for (size_t cell = 0; cell < plan.kept.size(); ++cell) {
    plan.token_counts[cell % experts_per_rank] += plan.kept[cell];
  }
  int64_t begin = 0;
  for (size_t local = 0; local < experts_per_rank; ++local) {
    plan.zone_begin.push_back(begin);
    plan.slot_counts.push_back(round_up(plan.token_counts[local], alignment));
    begin += plan.slot_counts.back();
    plan.total_recv_tokens += round_up(routed[local], alignment);
  }
  const int64_t kept = sum(plan.token_counts);
  plan.recv_assignments = sum(routed);
  plan.dropped_assignments = plan.recv_assignments - kept;
  plan.padding_slots = begin - kept;
  return plan;
}

}  // namespace spillway::plan
