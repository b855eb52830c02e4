#pragma once
// Element types. A runtime enum: kernels pick their templated body through `visit_float`.

#include <bit>
#include <cstdint>
#include <string_view>

#include "spillway/core/error.h"

namespace spillway {

enum class DType { kF32, kF64, kBF16, kI32, kI64 };

/// bfloat16: the upper half of an IEEE binary32. Conversion rounds to nearest, ties to even, and
/// overflows to infinity; denormals are kept. A NaN stays a NaN with its sign and upper payload,
/// made quiet.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (word + 0x7fffU + ((word >> 16) & 1U)) >> 16;
    // A NaN must not round up to infinity.
    const bool nan = (word & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<uint16_t>(nan ? (word >> 16) | 0x40U : rounded);
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kBF16:
      return 2;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
  }
  return "?";
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

/// The type that a kernel computes and sums in: double for f64, float for the others.
template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <typename T>
using acc_t = typename AccumulatorOf<T>::type;
/// The dtype of sums and of parameter gradients: f64 for f64, else f32.
constexpr DType accumulator_dtype(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// Calls `f.template operator()<T>()` with the C++ type of a floating dtype and returns its result.
/// Throws Error for an integer dtype.
template <typename F>
decltype(auto) visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kF64:
      return f.template operator()<double>();
    case DType::kBF16:
      return f.template operator()<bf16>();
    default:
      throw Error(str("dtype ", dtype_name(dtype), " is not one of f32, f64, bf16"));
  }
}

}  // namespace spillway
