#pragma once
// Slots times a real number, the one place where capacities meet floating point.

#include <cstdint>

namespace spillway::capacity {

/// roundup(ceil(slots * factor), alignment), never more than `limit` (a multiple of alignment).
/// The ceiling forgives relative rounding errors of 1e-12, so 1.1 * 100 is 110 and not 111.
/// `slots` and `factor` are not negative.
int64_t scaled_slots(int64_t slots, double factor, int64_t alignment, int64_t limit);

/// The capacity that a layer grows to in a step whose world-maximum demand is `demand`:
/// scaled_slots(demand, 1 + grow_margin, ...), at least the demand.
int64_t grown_capacity(int64_t demand, double grow_margin, int64_t alignment,
                       int64_t worst_case_slots);

}  // namespace spillway::capacity
