#pragma once
// The count matrix of one layer and micro-batch: what every rank of an EP group knows after the
// one count exchange of prepare.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway::plan {

/// Assignments routed from each source rank to each global expert, before any drop. Rank r owns
/// the experts [r * L, (r + 1) * L), L = num_experts / ep.
struct CountMatrix {
  int64_t ep = 1;
  int64_t num_experts = 0;
  std::vector<int64_t> counts;  ///< [ep, E], source-major: one row is one source rank

  int64_t at(int64_t source, int64_t expert) const {
    return counts[static_cast<size_t>(source * num_experts + expert)];
  }
  int64_t experts_per_rank() const { return num_experts / ep; }
};

/// Throws, with the value and what is allowed, unless ep >= 1 divides num_experts >= ep and
/// `counts` has ep * num_experts entries.
void check_shape(const CountMatrix& matrix);

/// `total_recv_tokens` of a rank, in slots: the sum over its experts of the assignments routed to
/// each, rounded up to `alignment`, before any drop. Throws on a bad shape, rank, alignment (a
/// power of two up to 2^30) or a count that is negative or 2^44 and more. O(ep * L).
int64_t demand_slots(const CountMatrix& matrix, int64_t rank, int64_t alignment);

/// Assignments routed to a rank, before any drop, without padding. Throws as above.
int64_t recv_assignments(const CountMatrix& matrix, int64_t rank);

/// Assignments routed to each local expert of a rank, [L], summed over sources. Throws as above.
std::vector<int64_t> routed_per_expert(const CountMatrix& matrix, int64_t rank);

}  // namespace spillway::plan
