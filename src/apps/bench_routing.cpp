#include "bench_routing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "spillway/core/rng.h"

namespace spillway::bench {

Tensor random_routing(Context& ctx, int64_t num_tokens, int64_t top_k, int64_t num_experts,
                      double skew, uint64_t seed, uint64_t stream) {
  SPILLWAY_CHECK(top_k <= num_experts, "top_k is ", top_k, "; allowed: at most the ", num_experts,
                 " experts");
  std::vector<double> up_to(static_cast<size_t>(num_experts));  // sums of the weights
  double total = 0.0;
  for (int64_t e = 0; e < num_experts; ++e) {
    total += std::pow(static_cast<double>(e + 1), -skew);
    up_to[static_cast<size_t>(e)] = total;
  }
  Tensor ids = Tensor::empty(ctx, {num_tokens, top_k}, DType::kI32);
  Rng rng(seed, stream);
  for (int64_t t = 0; t < num_tokens; ++t) {
    int32_t* const first = ids.data<int32_t>() + t * top_k;
    for (int32_t* next = first; next < first + top_k;) {
      const auto above = std::upper_bound(up_to.begin(), up_to.end() - 1, rng.uniform() * total);
      *next = static_cast<int32_t>(above - up_to.begin());
      if (std::find(first, next, *next) == next) ++next;  // else drawn already: draw again
    }
  }
  return ids;
}

}  // namespace spillway::bench
