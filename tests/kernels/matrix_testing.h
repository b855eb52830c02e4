#pragma once
// What the tests of matrix products and attention share besides support/kernel_test.h.

#include <cmath>

#include "support/kernel_test.h"

namespace spillway::testing {

/// Normal values of the given deviation between guard words.
inline Guarded guarded_random(Context& ctx, Shape shape, DType dtype, uint64_t seed,
                              double deviation = 1.0) {
  Guarded guarded(ctx, shape, dtype);
  copy(random_tensor(ctx, shape, dtype, seed, deviation), guarded.tensor);
  return guarded;
}

/// Error bound of a sum of `depth` products computed in the accumulator of `in` and stored as
/// `out`: each product and addition rounds once (unit 2^-24; 2^-53 for f64), the result once more
/// (2^-8 is one unit of bf16). `magnitude`: sum of absolute products. Twice that, for other orders
/// of sums.
inline double sum_tolerance(DType in, DType out, int64_t depth, double magnitude) {
  const double unit = in == DType::kF64 ? std::ldexp(1.0, -53) : std::ldexp(1.0, -24);
  const double storage = out == DType::kBF16 ? std::ldexp(1.0, -8) : 0.0;
  return (2.0 * static_cast<double>(depth + 2) * unit + storage) * magnitude;
}

inline std::string dtype_label(DType dtype) { return std::string(dtype_name(dtype)); }

}  // namespace spillway::testing
