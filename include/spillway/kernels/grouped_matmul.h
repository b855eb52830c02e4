#pragma once
// The experts' products: one weight a group of rows, group sizes known at run time. Tiling, split
// and order of sums depend on the group sizes and the fixed shapes only, never on C.

#include "spillway/kernels/row_groups.h"
#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// y[r,:] = x[r,:] w[g]^T for the rows r of group g. x [C,K], w [G,N,K], y [C,N]; one dtype (f32,
/// f64, bf16). Rows outside the groups are neither read nor written.
void grouped_matmul(Context& ctx, const Tensor& x, const Tensor& w, RowGroups groups, Tensor& y);

/// dx[r,:] = dy[r,:] w[g]. dy [C,N], w [G,N,K], dx [C,K].
void grouped_matmul_dgrad(Context& ctx, const Tensor& dy, const Tensor& w, RowGroups groups,
                          Tensor& dx);

/// dw[g] += dy_g^T x_g over the rows of group g. dw [G,N,K] in the accumulator dtype of x; a group
/// without rows leaves its dw as it is.
void grouped_matmul_wgrad(Context& ctx, const Tensor& dy, const Tensor& x, RowGroups groups,
                          Tensor& dw);

}  // namespace spillway::kernels
