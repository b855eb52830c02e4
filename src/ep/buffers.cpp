#include "buffers.h"

#include <algorithm>

namespace spillway::ep {

Tensor Session::Buffers::take(Context& ctx, int64_t capacity, const EpConfig& config, bool keep) {
  const Shape shape{capacity, config.hidden};
  for (const Tensor& buffer : rows) {
    if (buffer.shape() == shape && buffer.unique()) return buffer;
  }
  Tensor fresh = Tensor::empty(ctx, shape, config.dtype, Purpose::kReceive);
  if (keep) rows.push_back(fresh);
  return fresh;
}

void Session::Buffers::reserve(Context& ctx, const std::vector<int64_t>& capacities,
                               const EpConfig& config) {
  for (const int64_t capacity : capacities) take(ctx, capacity, config, true);
}

void Session::Buffers::keep_only(const std::vector<int64_t>& capacities) {
  std::erase_if(rows, [&](const Tensor& buffer) {
    return std::find(capacities.begin(), capacities.end(), buffer.dim(0)) == capacities.end();
  });
}

}  // namespace spillway::ep
