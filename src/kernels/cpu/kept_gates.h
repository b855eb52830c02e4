#pragma once

#include "spillway/kernels/kept_gates.h"

namespace spillway::kernels::cpu {

void renormalize_kept(Context& ctx, const RenormalizeArgs& args);
void renormalize_kept_backward(Context& ctx, const RenormalizeBackwardArgs& args);

}  // namespace spillway::kernels::cpu
