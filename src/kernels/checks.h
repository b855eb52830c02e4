#pragma once
// What entries check before they dispatch. Every text names the op, the tensor, what it is and what
// is wanted.

#include <initializer_list>

#include "spillway/kernels/row_groups.h"
#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// A tensor under the name that error texts call it by.
struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

/// All are defined and live where the context computes.
inline void check_tensors(const Context& ctx, const char* op,
                          std::initializer_list<NamedTensor> tensors) {
  for (const NamedTensor& t : tensors) {
    SPILLWAY_CHECK(t.tensor.defined(), op, ": ", t.name, " is undefined");
    SPILLWAY_CHECK(t.tensor.device() == ctx.device(), op, ": ", t.name, " is on ",
                   device_name(t.tensor.device()), ", the context on ", device_name(ctx.device()));
  }
}

inline void check_dtype(const char* op, const NamedTensor& t, DType wanted) {
  SPILLWAY_CHECK(t.tensor.dtype() == wanted, op, ": ", t.name, " is ", dtype_name(t.tensor.dtype()),
                 ", it must be ", dtype_name(wanted));
}

inline void check_floating(const char* op, const NamedTensor& t) {
  const DType dtype = t.tensor.dtype();
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16, op, ": ",
                 t.name, " is ", dtype_name(dtype), ", it must be f32, f64 or bf16");
}

inline void check_accumulator(const char* op, const NamedTensor& t) {
  SPILLWAY_CHECK(t.tensor.dtype() == DType::kF32 || t.tensor.dtype() == DType::kF64, op, ": ",
                 t.name, " is ", dtype_name(t.tensor.dtype()), ", it must be f32 or f64");
}

inline void check_shape(const char* op, const NamedTensor& t, const Shape& wanted) {
  SPILLWAY_CHECK(t.tensor.shape() == wanted, op, ": ", t.name, " has shape ", t.tensor.shape(),
                 ", it must be ", wanted);
}

inline void check_rank(const char* op, const NamedTensor& t, int wanted) {
  SPILLWAY_CHECK(t.tensor.shape().rank() == wanted, op, ": ", t.name, " has shape ",
                 t.tensor.shape(), ", it must have ", wanted, " dimensions");
}

/// For tensors whose rank is free: `wanted` elements under any shape.
inline void check_numel(const char* op, const NamedTensor& t, int64_t wanted) {
  SPILLWAY_CHECK(t.tensor.numel() == wanted, op, ": ", t.name, " has shape ", t.tensor.shape(),
                 ", it must have ", wanted, " elements");
}

/// Groups ascend, do not overlap and lie in a buffer of `num_rows` rows.
inline void check_row_groups(const char* op, RowGroups groups, int64_t num_rows) {
  SPILLWAY_CHECK(groups.begin.size() == groups.rows.size(), op, ": ", groups.begin.size(),
                 " group begins for ", groups.rows.size(), " group sizes");
  int64_t end = 0;
  for (size_t g = 0; g < groups.rows.size(); ++g) {
    const int64_t begin = groups.begin[g];
    const int64_t rows = groups.rows[g];
    SPILLWAY_CHECK(begin >= end && rows >= 0 && rows <= num_rows - begin, op, ": group ", g,
                   " has rows [", begin, ", ", begin + rows, "), it must start at ", end,
                   " or later and end within the ", num_rows, " rows of the buffer");
    end = begin + rows;
  }
}

}  // namespace spillway::kernels
