#pragma once

#include "spillway/kernels/matmul.h"

namespace spillway::kernels::cpu {

void matmul(Context& ctx, const MatmulArgs& args);

}  // namespace spillway::kernels::cpu
