#include "spillway/plan/sizing.h"

#include <algorithm>

#include "checks.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {

int64_t worst_case_slots(int64_t num_tokens_N, int64_t top_k, int64_t experts_per_rank,
                         int64_t alignment) {
  SPILLWAY_CHECK(num_tokens_N >= 0, "num_tokens is ", num_tokens_N, "; allowed: >= 0");
  SPILLWAY_CHECK(top_k >= 0, "top_k is ", top_k, "; allowed: >= 0");
  SPILLWAY_CHECK(experts_per_rank >= 1, "experts_per_rank is ", experts_per_rank,
                 "; allowed: >= 1");
  check_alignment(alignment);
  const int64_t most_assignments = checked_mul(num_tokens_N, std::min(top_k, experts_per_rank));
  // No expert gets a token twice, so no zone is longer than N.
  const int64_t full_zones = checked_mul(experts_per_rank, round_up(num_tokens_N, alignment));
  // Padding is worst, A - 1 slots, in a zone with one row past a multiple of A; only a zone with a
  // row is padded at all.
  const int64_t padding = checked_mul(alignment - 1, std::min(experts_per_rank, most_assignments));
  return std::min(full_zones, round_down(most_assignments + padding, alignment));
}

int64_t balanced_slots(int64_t num_tokens_N, int64_t top_k, int64_t num_experts,
                       int64_t experts_per_rank, int64_t alignment) {
  SPILLWAY_CHECK(num_experts >= experts_per_rank, "num_experts is ", num_experts,
                 "; allowed: >= experts_per_rank = ", experts_per_rank);
  const int64_t worst_case = worst_case_slots(num_tokens_N, top_k, experts_per_rank, alignment);
  const int64_t tokens_per_expert = ceil_div(checked_mul(num_tokens_N, top_k), num_experts);
  return std::min(checked_mul(experts_per_rank, round_up(tokens_per_expert, alignment)),
                  worst_case);
}

int64_t clamp_capacity(int64_t slots, int64_t min_slots, int64_t worst_case, int64_t alignment) {
  check_alignment(alignment);
  SPILLWAY_CHECK(worst_case >= 0 && worst_case % alignment == 0, "worst_case is ", worst_case,
                 "; allowed: a multiple of the alignment ", alignment);
  const int64_t least = std::max({slots, min_slots, alignment});
  // The minimum is taken first: rounding up a huge request could leave 64 bits.
  return round_up(std::min(least, worst_case), alignment);
}

}  // namespace spillway::plan
