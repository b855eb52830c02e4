#pragma once

#include "spillway/kernels/fill.h"

namespace spillway::kernels::cpu {

void fill(Context& ctx, double value, Tensor& x);
void fill_normal(Context& ctx, const FillNormalArgs& args);
void fill_unless_rounds_to(Context& ctx, const Tensor& rounded, Tensor& x);

}  // namespace spillway::kernels::cpu
