#pragma once

#include "spillway/kernels/rope.h"

namespace spillway::kernels::cpu {

void rope_table(double theta, Tensor& cos, Tensor& sin);
void rope(Context& ctx, const RopeArgs& args);

}  // namespace spillway::kernels::cpu
