#pragma once

#include "spillway/kernels/adamw.h"

namespace spillway::kernels::cpu {

void adamw(Context& ctx, const AdamWArgs& args);

}  // namespace spillway::kernels::cpu
