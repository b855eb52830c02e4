#pragma once
// What the entries of this module check alike.

#include <cstdint>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {

inline void check_alignment(int64_t alignment) {
  SPILLWAY_CHECK(is_power_of_two(alignment), "alignment is ", alignment,
                 "; allowed: a power of two");
}

}  // namespace spillway::plan
