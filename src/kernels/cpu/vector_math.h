#pragma once
// Elementary functions that compilers vectorise: no library call, no branch. The double versions
// are the standard library's, for gradient checks and references.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace spillway::kernels::cpu {

/// e^x. Relative error below 2e-7 on [-87, 88]; 0 below the least normal result (x < -87.33),
/// infinity above 88.73; NaN stays NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, then 2^n times a polynomial of degree 6 in r: 1 + r + r^2
/// q(r), q of least maximal relative error (Remez exchange; 3.1e-9 before rounding).
inline float fast_exp(float x) {
  constexpr float kLowest = -87.33654f;  // ln of the least normal float
  constexpr float kLog2e = 1.44269504f;
  // ln 2 in two parts: n times the first, of 10 bits, is exact.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  constexpr float kRound = 12582912.0f;
  constexpr int32_t kMaxShifted = std::bit_cast<int32_t>(kRound + 127.0f);

  // n stops at 127, the largest exponent: past it r grows, and the product overflows to infinity.
  // An integer minimum, because gcc turns comparisons of floats into paths it then computes twice.
  const int32_t shifted = std::min(std::bit_cast<int32_t>(x * kLog2e + kRound), kMaxShifted);
  const float n = std::bit_cast<float>(shifted) - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float q = 1.3814599e-3f;
  q = q * r + 8.3687169e-3f;
  q = q * r + 4.1668388e-2f;
  q = q * r + 1.6666521e-1f;
  q = q * r + 4.9999993e-1f;
  const float mantissa = (q * r) * r + r + 1.0f;
  const uint32_t exponent = (static_cast<uint32_t>(shifted) + 127U) << 23;
  const float result = mantissa * std::bit_cast<float>(exponent);
  return x < kLowest ? 0.0f : result;  // false for NaN, which has come through
}
inline double fast_exp(double x) { return std::exp(x); }

/// 1 / (1 + e^-x).
template <typename A>
inline A sigmoid(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}
/// x * sigmoid(x).
template <typename A>
inline A silu(A x) {
  return x * sigmoid(x);
}

}  // namespace spillway::kernels::cpu
