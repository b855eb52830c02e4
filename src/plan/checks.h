#pragma once
// What the entries of this module check alike.

#include <cstdint>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {

/// Sums of padded zones stay within 64 bits below this.
inline constexpr int64_t kLargestAlignment = int64_t{1} << 30;

inline void check_alignment(int64_t alignment) {
  SPILLWAY_CHECK(is_power_of_two(alignment) && alignment <= kLargestAlignment, "alignment is ",
                 alignment, "; allowed: a power of two up to 2^30");
}

}  // namespace spillway::plan
