#include "spillway/plan/count_matrix.h"

#include <numeric>

#include "checks.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {

void check_shape(const CountMatrix& matrix) {
  SPILLWAY_CHECK(matrix.ep >= 1, "ep is ", matrix.ep, "; allowed: >= 1");
  SPILLWAY_CHECK(matrix.num_experts >= matrix.ep && matrix.num_experts % matrix.ep == 0,
                 "num_experts is ", matrix.num_experts,
                 "; allowed: a positive multiple of ep = ", matrix.ep);
  SPILLWAY_CHECK(
      static_cast<int64_t>(matrix.counts.size()) == checked_mul(matrix.ep, matrix.num_experts),
      "the count matrix has ", matrix.counts.size(),
      " entries; allowed: ep * num_experts = ", matrix.ep, " * ", matrix.num_experts);
}

std::vector<int64_t> routed_per_expert(const CountMatrix& matrix, int64_t rank) {
  check_shape(matrix);
  SPILLWAY_CHECK(rank >= 0 && rank < matrix.ep, "rank is ", rank,
                 "; allowed: 0 to ep - 1 = ", matrix.ep - 1);
  const int64_t experts_per_rank = matrix.experts_per_rank();
  const int64_t first_expert = rank * experts_per_rank;
  std::vector<int64_t> routed(static_cast<size_t>(experts_per_rank), 0);
  for (int64_t source = 0; source < matrix.ep; ++source) {
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      const int64_t count = matrix.at(source, first_expert + local);
      SPILLWAY_CHECK(count >= 0, "the count of source ", source, ", expert ", first_expert + local,
                     " is ", count, "; allowed: >= 0");
      routed[static_cast<size_t>(local)] += count;
    }
  }
  return routed;
}

int64_t demand_slots(const CountMatrix& matrix, int64_t rank, int64_t alignment) {
  check_alignment(alignment);
  int64_t demand = 0;
  for (const int64_t routed : routed_per_expert(matrix, rank))
    demand += round_up(routed, alignment);
  return demand;
}

int64_t recv_assignments(const CountMatrix& matrix, int64_t rank) {
  const std::vector<int64_t> routed = routed_per_expert(matrix, rank);
  return std::accumulate(routed.begin(), routed.end(), int64_t{0});
}

}  // namespace spillway::plan
