#pragma once

#include "spillway/kernels/rms_norm.h"

namespace spillway::kernels::cpu {

void rms_norm(Context& ctx, const Tensor& x, const Tensor& w, double eps, Tensor& y,
              Tensor& inv_rms);
/// `partial`: accumulator dtype [chunks of `row_chunks`, N], scratch for dw.
void rms_norm_backward(Context& ctx, const RmsNormBackwardArgs& args, Tensor& partial);

}  // namespace spillway::kernels::cpu
