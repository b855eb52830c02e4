#pragma once
// What kernel tests share: data, double copies, guard words, tolerances.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "spillway/core/rng.h"
#include "spillway/tensor/tensor.h"
#include "support/throws.h"

namespace spillway::testing {

inline const std::vector<DType>& float_dtypes() {
  static const std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kBF16};
  return dtypes;
}

/// Relative error of one rounded result: a few units of the last place of the dtype (2^-24, 2^-53,
/// 2^-9 is half a unit), the rest for sums of some hundred terms in the accumulator dtype.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-13;
    case DType::kBF16:
      return 1.0 / 128;
    default:
      return 2e-6;
  }
}

inline double element(const Tensor& tensor, int64_t i) {
  double value = 0.0;
  visit_float(tensor.dtype(), [&]<typename T>() {
    value = static_cast<double>(static_cast<acc_t<T>>(tensor.data<T>()[i]));
  });
  return value;
}

inline std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  for (int64_t i = 0; i < tensor.numel(); ++i) values[static_cast<size_t>(i)] = element(tensor, i);
  return values;
}

inline void set_element(Tensor& tensor, int64_t i, double value) {
  visit_float(tensor.dtype(), [&]<typename T>() {
    tensor.data<T>()[i] = static_cast<T>(static_cast<acc_t<T>>(value));
  });
}

inline void set_values(Tensor& tensor, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    set_element(tensor, static_cast<int64_t>(i), values[i]);
  }
}

/// The value as the dtype would hold it.
inline double rounded(double value, DType dtype) {
  return visit_float(dtype, [&]<typename T>() {
    return static_cast<double>(static_cast<acc_t<T>>(static_cast<T>(static_cast<acc_t<T>>(value))));
  });
}

/// Normal values of the given deviation, rounded to the dtype.
inline Tensor random_tensor(Context& ctx, Shape shape, DType dtype, uint64_t seed,
                            double deviation = 1.0) {
  Tensor tensor = Tensor::empty(ctx, shape, dtype);
  const Rng rng(seed);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    set_element(tensor, i, deviation * rng.normal_at(static_cast<uint64_t>(i)));
  }
  return tensor;
}

template <typename T>
Tensor tensor_of(Context& ctx, Shape shape, const std::vector<T>& values) {
  return Tensor::from<T>(ctx, shape, std::span<const T>(values));
}

/// A tensor between guard words: a kernel that writes outside it is found by `intact`, one that
/// reads outside it, or what it should have written, spoils its result with a NaN (floats).
class Guarded {
 public:
  Guarded(Context& ctx, Shape shape, DType dtype)
      : whole_(Tensor::empty(ctx, {shape.numel() + 2 * kGuard}, dtype)),
        // All bits set is a NaN of every floating dtype, but -1 as an integer, which kernels write.
        pattern_(dtype == DType::kI32 || dtype == DType::kI64 ? 0xa5 : 0xff) {
    std::memset(whole_.raw_data(), pattern_, static_cast<size_t>(whole_.bytes()));
    tensor = whole_.slice(kGuard, shape);
  }
  bool intact() const {
    const auto* bytes = static_cast<const unsigned char*>(whole_.raw_data());
    const int64_t guard_bytes = kGuard * dtype_bytes(whole_.dtype());
    for (int64_t i = 0; i < guard_bytes; ++i) {
      if (bytes[i] != pattern_ || bytes[whole_.bytes() - 1 - i] != pattern_) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;  // elements: the tensor stays 64-byte aligned
  Tensor whole_;
  unsigned char pattern_;

 public:
  Tensor tensor;
};

/// |a - b| <= tolerance * (|b| + scale) for all elements; `scale` stands for the size of the terms
/// of a sum that may cancel.
inline ::testing::AssertionResult all_near(const Tensor& tensor, const std::vector<double>& wanted,
                                           double relative, double scale = 1e-3) {
  if (tensor.numel() != static_cast<int64_t>(wanted.size())) {
    return ::testing::AssertionFailure()
           << tensor.numel() << " elements, " << wanted.size() << " wanted";
  }
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double got = element(tensor, i);
    const double want = wanted[static_cast<size_t>(i)];
    if (!(std::abs(got - want) <= relative * (std::abs(want) + scale))) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << tensor.shape() << ": " << got << ", wanted " << want;
    }
  }
  return ::testing::AssertionSuccess();
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 ||
          std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(a.bytes())) == 0);
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0.0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += element(a, i) * element(b, i);
  return sum;
}

/// Size and dtype of a case of a grid over matrices, "rows3_cols7_bf16".
struct MatrixCase {
  int64_t rows;
  int64_t cols;
  DType dtype;
};
inline void PrintTo(const MatrixCase& c, std::ostream* out) {
  *out << "rows" << c.rows << "_cols" << c.cols << "_" << dtype_name(c.dtype);
}
inline std::string matrix_case_name(const ::testing::TestParamInfo<MatrixCase>& info) {
  return str("rows", info.param.rows, "_cols", info.param.cols, "_", dtype_name(info.param.dtype));
}
inline std::vector<MatrixCase> matrix_cases(const std::vector<std::pair<int64_t, int64_t>>& sizes) {
  std::vector<MatrixCase> cases;
  for (const auto& [rows, cols] : sizes) {
    for (const DType dtype : float_dtypes()) cases.push_back({rows, cols, dtype});
  }
  return cases;
}

}  // namespace spillway::testing
