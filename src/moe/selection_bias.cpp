#include "spillway/moe/selection_bias.h"

#include <numeric>

namespace spillway::moe {

void update_selection_bias(Tensor& bias, std::span<const int64_t> counts, double rate) {
  const auto num_experts = static_cast<int64_t>(counts.size());
  SPILLWAY_CHECK(bias.numel() == num_experts, "selection bias of shape ", bias.shape(),
                 ", it must have one element for each of ", num_experts, " counts");
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  float* const b = bias.data<float>();
  for (int64_t e = 0; e < num_experts; ++e) {
    // Integers: which side of the mean is no matter of rounding.
    const int64_t missing = total - num_experts * counts[static_cast<size_t>(e)];
    const int sign = (missing > 0) - (missing < 0);
    b[e] = static_cast<float>(static_cast<double>(b[e]) + rate * sign);
  }
}

}  // namespace spillway::moe
