#pragma once
// Integer arithmetic shared by everything that counts slots, rows or bytes.

#include <cstdint>

#include "spillway/core/error.h"

namespace spillway {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }
constexpr int64_t round_down(int64_t a, int64_t multiple) { return a / multiple * multiple; }
constexpr bool is_power_of_two(int64_t a) { return a > 0 && (a & (a - 1)) == 0; }

/// a * b; throws when the product does not fit 64 bits.
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw Error(str(a, " * ", b, " overflows 64 bits"));
  return product;
}

}  // namespace spillway
