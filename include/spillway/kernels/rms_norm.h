#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// RMSNorm (Zhang, Sennrich 2019): y = w * cast(x / sqrt(mean(x^2) + eps)), mean in fp32, cast to
/// the dtype of x before the product with w. x, y [R,N] (higher ranks read as [rows, last]),
/// w [N]; inv_rms [R] in the accumulator dtype is saved for backward.
void rms_norm(Context& ctx, const Tensor& x, const Tensor& w, double eps, Tensor& y,
              Tensor& inv_rms);

/// dx [R,N] is overwritten; dw [N] in the accumulator dtype is added to.
struct RmsNormBackwardArgs {
  const Tensor& dy;
  const Tensor& x;
  const Tensor& w;
  const Tensor& inv_rms;
  Tensor& dx;
  Tensor& dw;
};
void rms_norm_backward(Context& ctx, const RmsNormBackwardArgs& args);

/// Bytes of workspace that `rms_norm_backward` of x [rows, columns] holds.
int64_t rms_norm_backward_workspace_bytes(int64_t rows, int64_t columns, DType dtype);

}  // namespace spillway::kernels
