#pragma once

#include <cstdint>
#include <vector>

namespace spillway::ep {

/// Every drop of one layer and micro-batch, exactly. Equal on all ranks of the EP group, which know
/// them from the count matrix, but for what says "this rank".
struct Ledger {
  std::vector<int64_t> total_recv_tokens;    ///< [ep] demand in slots, before drops
  std::vector<int64_t> recv_assignments;     ///< [ep] before drops, without padding
  std::vector<int64_t> slot_counts_sum;      ///< [ep] slots filled, padding included, after drops
  std::vector<int64_t> padding_slots;        ///< [ep]
  std::vector<int64_t> dropped_assignments;  ///< [ep] by RECEIVING rank
  std::vector<int64_t> dropped_by_source;    ///< [ep]
  std::vector<int64_t> dropped_by_expert;    ///< [E]
  std::vector<int64_t> expert_tokens;        ///< [E] assignments before drops
  int64_t group_tokens = 0;                  ///< N, sum of T over the group
  int64_t fully_dropped_tokens = 0;          ///< tokens of this rank that lost all they had
  double gate_mass = 0.0;                    ///< fp64 sum of this rank's gates, before drops
  double dropped_gate_mass = 0.0;            ///< of the dropped ones among them
  int64_t capacity_begin = 0;                ///< C when prepare began
  int64_t capacity_end = 0;                  ///< C after growing
  double grow_alloc_ms = 0.0;                ///< allocating the larger buffer; 0: nothing grew
  int64_t recv_buffer_bytes = 0;             ///< rows and gates at capacity_end, a rank
};

}  // namespace spillway::ep
