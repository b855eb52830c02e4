#pragma once
// The fixed split of long sums: partial sums of chunks, added in order. It depends on the length
// only, so that the bits of a sum do not depend on the number of threads.

#include <algorithm>
#include <cstdint>

#include "spillway/core/math.h"

namespace spillway::kernels {

/// [0, length) in at most 64 chunks of equal size (the last may be shorter).
struct ReductionChunks {
  static constexpr int64_t kMaxChunks = 64;

  /// Chunk sizes are multiples of `multiple`.
  ReductionChunks(int64_t total, int64_t multiple)
      : length(total), size(std::max(multiple, round_up(ceil_div(total, kMaxChunks), multiple))) {}

  int64_t count() const { return ceil_div(length, size); }
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk) const { return std::min(length, (chunk + 1) * size); }

  int64_t length;
  int64_t size;
};

/// The split of rows of a matrix: 16 at least, or the partial sums would cost more than the rows.
inline ReductionChunks row_chunks(int64_t rows) { return ReductionChunks(rows, 16); }
/// The split of a flat array.
inline ReductionChunks element_chunks(int64_t elements) { return ReductionChunks(elements, 4096); }

}  // namespace spillway::kernels
