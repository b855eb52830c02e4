#pragma once
// Score functions of one logit: sigmoid and sqrtsoftplus.

#include "spillway/kernels/routing.h"
#include "vector_math.h"

namespace spillway::kernels::cpu {

/// log(1 + e^x) without overflow.
template <typename A>
inline A softplus(A x) {
  return std::max(x, A(0)) + std::log1p(fast_exp(-std::abs(x)));
}

/// out = score(x) for a row.
template <typename A>
void score_row(ScoreFunction function, const A* x, int64_t n, A* out) {
  if (function == ScoreFunction::kSigmoid) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = sigmoid(x[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = std::sqrt(softplus(x[i]));
}

/// d log(score) / dx = score' / score: bounded by 1 where the score itself vanishes.
template <typename A>
inline A log_score_slope(ScoreFunction function, A x) {
  if (function == ScoreFunction::kSigmoid) return sigmoid(-x);
  const A soft = softplus(x);
  return soft == A(0) ? A(0.5) : sigmoid(x) / (A(2) * soft);
}

}  // namespace spillway::kernels::cpu
