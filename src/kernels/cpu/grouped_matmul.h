#pragma once

#include "spillway/kernels/grouped_matmul.h"

namespace spillway::kernels::cpu {

void grouped_matmul(Context& ctx, const Tensor& x, const Tensor& w, RowGroups groups, Tensor& y);
void grouped_matmul_dgrad(Context& ctx, const Tensor& dy, const Tensor& w, RowGroups groups,
                          Tensor& dx);
void grouped_matmul_wgrad(Context& ctx, const Tensor& dy, const Tensor& x, RowGroups groups,
                          Tensor& dw);

}  // namespace spillway::kernels::cpu
