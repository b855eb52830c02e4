#pragma once
// What one rank receives: how much of each (source, local expert) cell is kept and where its rows
// land. Every rank of the group computes the same plans from the same count matrix.
//
// L = experts per rank, S = ep = source ranks of the group.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/plan/count_matrix.h"
#include "spillway/plan/drop_rule.h"

namespace spillway::plan {

/// What a rank keeps of each cell (source, local expert).
struct KeptRows {
  std::vector<int64_t> kept;  ///< [S, L], source-major: assignments kept of each cell
  /// False: of each cell the first `kept` assignments in token order. True: those whose key (of
  /// kRandom or kScore) is below `cut`, and of those with key == cut the first `at_cut` in token
  /// order; they are `kept` in all.
  bool by_key = false;
  uint64_t cut = 0;
  std::vector<int64_t> at_cut;  ///< [S, L] when by_key, else empty
};

/// Sizes in slots or assignments, as the names say. Zone e of the receive buffer is
/// [zone_begin[e], zone_begin[e] + slot_counts[e]); its first token_counts[e] slots hold rows
/// ordered by (source, token index), the rest is padding.
struct RankPlan {
  int64_t rank = 0;
  int64_t capacity = 0;               ///< slots of the receive buffer, a multiple of A
  KeptRows rows;                      ///< by_key is false whenever nothing is dropped
  std::vector<int64_t> token_counts;  ///< [L]: assignments kept, without padding
  std::vector<int64_t> slot_counts;   ///< [L]: token_counts, each rounded up to A
  std::vector<int64_t> zone_begin;    ///< [L]: exclusive prefix sums of slot_counts
  int64_t total_recv_tokens = 0;      ///< the demand, in slots, before drops
  int64_t recv_assignments = 0;       ///< before drops
  int64_t dropped_assignments = 0;
  int64_t padding_slots = 0;  ///< sum of slot_counts - sum of token_counts

  /// Slots in use: the sum of slot_counts, at most `capacity`.
  int64_t num_slots() const;
  /// True exactly when something is dropped.
  bool overflow() const { return total_recv_tokens > capacity; }
  /// Assignments kept of one (source, local expert) cell.
  int64_t kept_at(int64_t source, int64_t local_expert) const {
    return rows
        .kept[static_cast<size_t>(source) * slot_counts.size() + static_cast<size_t>(local_expert)];
  }
  /// First slot of a source's rows in a zone: zone_begin plus what lower sources keep there.
  int64_t source_begin(int64_t source, int64_t local_expert) const;
};

/// The plan of one rank under the longest-prefix rule: of the assignments routed to the rank, put
/// in the order of `rule`, as many first ones are kept as leave the padded zones within `capacity`.
/// O(ep * L), whatever the number of rows; a rank that overflows pays a factor of the logarithm of
/// its rows under kFair and hashes each of its rows under kRandom. Throws on a bad matrix, rank or
/// alignment (a power of two up to 2^30), on a capacity that is negative or no multiple of the
/// alignment, and under kScore on a rank that overflows: it needs the other plan_rank.
RankPlan plan_rank(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                   const DropRule& rule);

/// The plan of one rank that keeps `rows`, as keep_by_score gives them. Throws as above, and on
/// rows that have another shape, are more than the matrix has, or leave the padded zones above
/// `capacity`.
RankPlan plan_rank(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                   KeptRows rows);

}  // namespace spillway::plan
