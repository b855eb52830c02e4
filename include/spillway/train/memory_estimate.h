#pragma once

#include <cstdint>
#include <string>

#include "spillway/config/config.h"

namespace spillway::train {

/// Bytes that one slot of capacity costs in a MoE layer while the tape holds it: recv_tokens,
/// recv_gate, the two projections' rows, the activation and the expert output.
int64_t capacity_sized_row_bytes(const config::Config& config);

/// Bytes of one rank, from the config alone: nothing is allocated.
struct MemoryEstimate {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  ///< what the tape holds at the end of a forward, without rows of C
  /// All tensors with C rows that are there at once, at the capacity of the first step.
  int64_t receive_chosen = 0;
  int64_t receive_worst_case = 0;  ///< the same at worst case
};

MemoryEstimate estimate_memory(const config::Config& config);
/// What `train --validate` prints: parameter counts and the estimate, a line each.
std::string describe_model(const config::Config& config, int64_t world);

}  // namespace spillway::train
