#include "spillway/plan/count_matrix.h"

#include <numeric>

#include "checks.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"
#include "zones.h"

namespace spillway::plan {
namespace {

// Sums of padded counts stay within 64 bits: room for 2^18 cells and their padding.
constexpr int kCountBits = 44;

[[noreturn]] void throw_bad_count(const CountMatrix& matrix, int64_t rank) {
  const int64_t experts_per_rank = matrix.experts_per_rank();
  for (int64_t source = 0; source < matrix.ep; ++source) {
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      const int64_t expert = rank * experts_per_rank + local;
      const int64_t count = matrix.at(source, expert);
      SPILLWAY_CHECK(count >= 0, "the count of source ", source, ", expert ", expert, " is ", count,
                     "; allowed: >= 0");
      SPILLWAY_CHECK(count >> kCountBits == 0, "the count of source ", source, ", expert ", expert,
                     " is ", count, "; allowed: below 2^", kCountBits);
    }
  }
  throw Error("a count is out of range");  // not reached: called when one is
}

}  // namespace

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
  const auto experts_per_rank = static_cast<size_t>(matrix.experts_per_rank());
  std::vector<int64_t> routed(experts_per_rank, 0);
  int64_t all_bits = 0;
  const int64_t* row = matrix.counts.data() + rank * matrix.experts_per_rank();
  for (int64_t source = 0; source < matrix.ep; ++source, row += matrix.num_experts) {
    for (size_t local = 0; local < experts_per_rank; ++local) {
      routed[local] += row[local];
      all_bits |= row[local];
    }
  }
  // Negative or huge counts, found without a branch a count.
  if (all_bits >> kCountBits != 0) throw_bad_count(matrix, rank);
  return routed;
}

int64_t demand_slots(const CountMatrix& matrix, int64_t rank, int64_t alignment) {
  check_alignment(alignment);
  int64_t demand = 0;
  for (const int64_t routed : routed_per_expert(matrix, rank)) demand += padded(routed, alignment);
  return demand;
}

int64_t recv_assignments(const CountMatrix& matrix, int64_t rank) {
  const std::vector<int64_t> routed = routed_per_expert(matrix, rank);
  return std::accumulate(routed.begin(), routed.end(), int64_t{0});
}

}  // namespace spillway::plan
