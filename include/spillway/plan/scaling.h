#pragma once
// Slots times a real number, the one place where capacities meet floating point.

#include <cstdint>

namespace spillway::plan {

/// roundup(ceil(slots * factor), alignment), never more than `limit` (a multiple of alignment).
/// The ceiling forgives relative rounding errors of 1e-12, so 1.1 * 100 is 110 and not 111.
/// Throws Error when `slots` or `factor` is negative.
int64_t scaled_slots(int64_t slots, double factor, int64_t alignment, int64_t limit);

/// The capacity that a layer grows to when the largest demand of its ranks is `demand`:
/// scaled_slots(demand, 1 + grow_margin, ...), at least the demand. Throws Error when the demand is
/// above the worst case.
int64_t grown_capacity(int64_t demand, double grow_margin, int64_t alignment,
                       int64_t worst_case_slots);

}  // namespace spillway::plan
