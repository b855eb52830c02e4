#pragma once
// Random inputs and outputs between guard words, and comparison with references in double.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "spillway/core/rng.h"
#include "spillway/tensor/tensor.h"

namespace spillway::kernels::testing {

/// What a value becomes when it is stored: references start from it.
inline double rounded(double value, DType dtype) {
  if (dtype == DType::kF64) return value;
  const auto single = static_cast<float>(value);
  return dtype == DType::kBF16 ? static_cast<float>(bf16(single)) : single;
}

template <typename T>
double as_double(T value) {
  return static_cast<double>(static_cast<acc_t<T>>(value));
}

inline std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  visit_float(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = as_double(tensor.data<T>()[i]);
  });
  return values;
}

inline void set_values(Tensor& tensor, const std::vector<double>& values) {
  visit_float(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      tensor.data<T>()[i] = T(static_cast<acc_t<T>>(values[i]));
    }
  });
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const auto* first = static_cast<const std::byte*>(a.raw_data());
  return a.bytes() == b.bytes() &&
         std::equal(first, first + a.bytes(), static_cast<const std::byte*>(b.raw_data()));
}

/// A tensor in the middle of a larger block whose other elements are NaN: a kernel that reads them
/// spoils its result, one that writes them is found by `expect_guards`.
class Guarded {
 public:
  /// Elements before and behind; 32 keeps the tensor 64-byte aligned for every dtype.
  static constexpr int64_t kGuard = 32;

  Guarded(Context& ctx, Shape shape, DType dtype)
      : all_(Tensor::empty(ctx, {shape.numel() + 2 * kGuard}, dtype)) {
    set_values(all_, std::vector<double>(static_cast<size_t>(all_.numel()),
                                         std::numeric_limits<double>::quiet_NaN()));
    before_ = all_.clone(ctx);
    tensor = all_.slice(kGuard, shape);
  }

  void fill_normal(uint64_t seed, double factor = 1.0) {
    std::vector<double> values(static_cast<size_t>(tensor.numel()));
    const Rng rng(seed);
    for (size_t i = 0; i < values.size(); ++i) values[i] = factor * rng.normal_at(i);
    set_values(tensor, values);
  }

  void expect_guards(const char* name) const {
    const int64_t end = kGuard + tensor.numel();
    EXPECT_TRUE(same_bits(all_.rows(0, kGuard), before_.rows(0, kGuard))) << name << ": front";
    EXPECT_TRUE(same_bits(all_.rows(end, end + kGuard), before_.rows(end, end + kGuard)))
        << name << ": back";
  }

  Tensor tensor;

 private:
  Tensor all_, before_;
};

inline Guarded random_tensor(Context& ctx, Shape shape, DType dtype, uint64_t seed,
                             double factor = 1.0) {
  Guarded guarded(ctx, shape, dtype);
  guarded.fill_normal(seed, factor);
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

/// The text of the Error that `call` throws; empty when it throws none.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

inline void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

}  // namespace spillway::kernels::testing
