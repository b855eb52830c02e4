#pragma once

#include "spillway/kernels/row_groups.h"
#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// SwiGLU (Shazeer 2020) of a fused product: y[r,i] = silu(x[r,i]) * x[r,I+i] * row_scale[r].
/// x [C,2I] (gate then up), y [C,I], one dtype; row_scale [C] in the accumulator dtype or
/// undefined for 1. Only rows of the groups are read and written.
struct SwigluArgs {
  const Tensor& x;
  const Tensor& row_scale;
  RowGroups groups;
  Tensor& y;
};
void swiglu(Context& ctx, const SwigluArgs& args);

/// dx [C,2I] is overwritten on the groups' rows; d_row_scale [C] (accumulator dtype, undefined when
/// row_scale is) = sum_i dy[r,i] * silu(gate) * up.
struct SwigluBackwardArgs {
  const Tensor& dy;
  const Tensor& x;
  const Tensor& row_scale;
  RowGroups groups;
  Tensor& dx;
  Tensor& d_row_scale;
};
void swiglu_backward(Context& ctx, const SwigluBackwardArgs& args);

}  // namespace spillway::kernels
