#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// c[M,N] = op(a) op(b), plus the former c when `accumulate`. op(a) is [M,K], op(b) is [K,N];
/// `trans_x` says that x is stored transposed. Higher ranks are read as [rows, last]. a and b have
/// one dtype (f32, f64 or bf16); c has that dtype, or f32 for bf16 inputs. Sums are fp32 (f64 for
/// f64). K = 0 gives zeros (or leaves c when accumulating). Throws Error naming shapes and dtypes.
struct MatmulArgs {
  const Tensor& a;
  const Tensor& b;
  Tensor& c;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
};
void matmul(Context& ctx, const MatmulArgs& args);

}  // namespace spillway::kernels
