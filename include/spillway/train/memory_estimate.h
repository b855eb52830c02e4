#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "spillway/config/config.h"
#include "spillway/runtime/allocator.h"
#include "spillway/train/step_report.h"

namespace spillway::train {

/// Bytes that one slot of capacity costs in a MoE layer: recv_tokens, recv_gate, the two
/// projections' rows, the activation and the expert output. All but the expert output stay until
/// the layer's backward (without recompute).
int64_t capacity_sized_row_bytes(const config::Config& config);

/// Peaks of one rank in a training step, as its allocator counts them, from the config alone:
/// nothing is allocated. The step is walked once more over blocks that are only counted
/// (src/train/memory_*.h).
struct MemoryEstimate {
  std::array<int64_t, kNumPurposes> by_purpose{};  ///< not all at one time
  int64_t total = 0;                               ///< peak of the sum
  /// Of each of ops::kHeldNames what recompute regions hold at most (autograd::Tape::saved_bytes).
  SavedPeaks saved{};
  int64_t capacity = 0;  ///< slots of the largest layer; 0: dense model

  int64_t of(Purpose purpose) const { return by_purpose[static_cast<size_t>(purpose)]; }
};

struct MemoryOptions {
  int64_t world = 1;    ///< ranks; a multiple of parallel.ep
  int64_t threads = 1;  ///< of a rank: each has scratch of its own
  /// Buffers that hold any routing, and every row leaves its rank. False: the capacity of the first
  /// step, and an even share of the rows leaves.
  bool worst_case = false;
};
MemoryEstimate estimate_memory(const config::Config& config, const MemoryOptions& options);

/// "1.5 MiB (1572864)".
std::string size_text(int64_t bytes);

/// What `train --validate` prints: parameter counts, the memory table, and that of named saves
/// (train/memory_saves.h).
std::string describe_model(const config::Config& config, int64_t world, int64_t threads = 1);

}  // namespace spillway::train
