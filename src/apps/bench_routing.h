#pragma once
// Random choices of a router, for benchmarks.

#include "spillway/tensor/tensor.h"

namespace spillway::bench {

/// i32 [T,K]: of each token, K distinct experts of E, drawn one after the other with weights
/// (e + 1)^-skew (0: uniform). `stream`: another one for each rank.
/// Throws Error for K > E.
Tensor random_routing(Context& ctx, int64_t num_tokens, int64_t top_k, int64_t num_experts,
                      double skew, uint64_t seed, uint64_t stream);

}  // namespace spillway::bench
