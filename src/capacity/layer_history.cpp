#include "spillway/capacity/layer_history.h"

#include <algorithm>

#include "spillway/core/error.h"

namespace spillway::capacity {

void LayerHistory::push(int64_t demand) {
  SPILLWAY_CHECK(demand >= 0, "demand is ", demand, " slots; allowed: >= 0");
  demands_.push_back(demand);
  while (size() > limit_) demands_.pop_front();
}

int64_t LayerHistory::max_of_last(int64_t steps) const {
  if (demands_.empty()) return 0;
  const int64_t counted = std::clamp<int64_t>(steps, 0, size());
  int64_t largest = 0;
  for (auto it = demands_.end() - counted; it != demands_.end(); ++it) {
    largest = std::max(largest, *it);
  }
  return largest;
}

}  // namespace spillway::capacity
