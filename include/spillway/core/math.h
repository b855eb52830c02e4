#pragma once
// Integer arithmetic shared by everything that counts slots, rows or bytes.

#include <cstdint>

#include "spillway/core/error.h"

namespace spillway {

/// a * b; throws Error when the product does not fit 64 bits.
constexpr int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw Error(str(a, " * ", b, " overflows 64 bits"));
  return product;
}

/// a / b rounded towards plus infinity, b > 0. Right for every a: no sum that could overflow.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }
/// The least multiple that is not below a, multiple > 0; throws Error when it does not fit 64 bits.
constexpr int64_t round_up(int64_t a, int64_t multiple) {
  return checked_mul(ceil_div(a, multiple), multiple);
}
/// The greatest multiple that is not above a; a >= 0, multiple > 0.
constexpr int64_t round_down(int64_t a, int64_t multiple) { return a / multiple * multiple; }
constexpr bool is_power_of_two(int64_t a) { return a > 0 && (a & (a - 1)) == 0; }

}  // namespace spillway
