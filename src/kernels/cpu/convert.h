#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "spillway/tensor/dtype.h"

namespace spillway::kernels::cpu {

/// The value in the type that kernels compute in. By reference: a copied bf16 is not vectorised.
template <typename T>
inline acc_t<T> widen(const T& value) {
  return static_cast<acc_t<T>>(value);
}

/// Any floating type to any other; bf16 goes through float.
template <typename To, typename From>
inline To convert(From value) {
  return static_cast<To>(static_cast<acc_t<To>>(widen(value)));
}

/// A float whose upper half holds the bits of `bf16(value)`; the lower half is of no account. The
/// same rounding as there, written so that it stays in 32-bit lanes.
inline uint32_t bf16_in_upper_half(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = word + 0x7fffU + ((word >> 16) & 1U);
  return value != value ? word | 0x400000U : rounded;
}

/// to = value, rounded. By the word: gcc 12 does not vectorise loops that assign a bf16 as a whole.
template <typename T>
inline void store(T& to, acc_t<T> value) {
  if constexpr (std::is_same_v<T, bf16>) {
    to.bits = static_cast<uint16_t>(bf16_in_upper_half(value) >> 16);
  } else {
    to = value;
  }
}

/// The value as T would hold it: widen(T(value)).
template <typename T>
inline acc_t<T> round_to(acc_t<T> value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return std::bit_cast<float>(bf16_in_upper_half(value) & 0xffff0000U);
  } else {
    return value;
  }
}

}  // namespace spillway::kernels::cpu
