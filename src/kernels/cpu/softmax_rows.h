#pragma once
// Stable softmax pieces over one row.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "convert.h"
#include "vector_math.h"

namespace spillway::kernels::cpu {

/// The largest element; -inf for none.
template <typename T>
acc_t<T> row_max(const T* x, int64_t n) {
  acc_t<T> largest = -std::numeric_limits<acc_t<T>>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const acc_t<T> value = widen(x[i]);
    largest = value > largest ? value : largest;
  }
  return largest;
}

/// sum_i e^(x_i - shift). Blocks are added in double: a vocabulary of 10^5 terms in float alone
/// would lose three digits of the sum.
template <typename T>
double sum_exp(const T* x, int64_t n, acc_t<T> shift) {
  constexpr int64_t kBlock = 1024;
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    acc_t<T> sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += fast_exp(widen(x[i]) - shift);
    total += static_cast<double>(sum);
  }
  return total;
}

/// log sum_i e^x_i.
template <typename T>
double log_sum_exp(const T* x, int64_t n) {
  const acc_t<T> largest = row_max(x, n);
  return static_cast<double>(largest) + std::log(sum_exp(x, n, largest));
}

/// out = softmax(x); out may be x.
template <typename A>
void softmax_row(const A* x, int64_t n, A* out) {
  const A largest = row_max(x, n);
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const A value = fast_exp(x[i] - largest);
    out[i] = value;
    sum += value;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
}

}  // namespace spillway::kernels::cpu
