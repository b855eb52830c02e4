#include "spillway/capacity/policy.h"

#include "spillway/core/error.h"

namespace spillway::capacity {

void Policy::restore(std::span<const double> state) {
  SPILLWAY_CHECK(state.empty(), "the saved policy state has ", state.size(),
                 " numbers; allowed: 0");
}

}  // namespace spillway::capacity
