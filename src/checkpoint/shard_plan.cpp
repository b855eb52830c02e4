#include "shard_plan.h"

#include <algorithm>
#include <numeric>

namespace spillway::checkpoint {

std::vector<int64_t> assign_ranks(const std::vector<FileTensor>& tensors, int64_t num_experts,
                                  int64_t world, int64_t ep) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].shape.numel() > tensors[b].shape.numel();
  });
  std::vector<int64_t> load(static_cast<size_t>(world)), ranks(tensors.size());
  const auto give = [&](size_t tensor, int64_t first, int64_t stride) {
    int64_t best = first;
    for (int64_t rank = first; rank < world; rank += stride) {
      if (load[static_cast<size_t>(rank)] < load[static_cast<size_t>(best)]) best = rank;
    }
    load[static_cast<size_t>(best)] += tensors[tensor].shape.numel();
    ranks[tensor] = best;
  };
  // Experts have the least choice.
  for (const size_t i : order) {
    if (tensors[i].expert >= 0) give(i, tensors[i].expert / (num_experts / ep), ep);
  }
  for (const size_t i : order) {
    if (tensors[i].expert < 0) give(i, 0, 1);
  }
  return ranks;
}

}  // namespace spillway::checkpoint
