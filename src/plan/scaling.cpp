#include "spillway/plan/scaling.h"

#include <algorithm>
#include <cmath>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::plan {
namespace {
// Well above the rounding of one product (2^-52), well below one slot of any real buffer.
constexpr double kForgiven = 1e-12;
}  // namespace

int64_t scaled_slots(int64_t slots, double factor, int64_t alignment, int64_t limit) {
  SPILLWAY_CHECK(slots >= 0 && factor >= 0, "slots is ", slots, ", factor is ", factor,
                 "; allowed: both >= 0");
  const double scaled = static_cast<double>(slots) * factor;
  // Compared as doubles first: the cast of a huge product would be undefined.
  if (scaled >= static_cast<double>(limit)) return limit;
  const auto whole = static_cast<int64_t>(std::ceil(scaled * (1 - kForgiven)));
  return std::min(round_up(whole, alignment), limit);
}

int64_t grown_capacity(int64_t demand, double grow_margin, int64_t alignment,
                       int64_t worst_case_slots) {
  SPILLWAY_CHECK(demand <= worst_case_slots, "demand is ", demand,
                 " slots; allowed: at most the worst case, ", worst_case_slots);
  return std::max(round_up(demand, alignment),
                  scaled_slots(demand, 1 + grow_margin, alignment, worst_case_slots));
}

}  // namespace spillway::plan
