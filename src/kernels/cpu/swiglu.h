#pragma once

#include "spillway/kernels/swiglu.h"

namespace spillway::kernels::cpu {

void swiglu(Context& ctx, const SwigluArgs& args);
void swiglu_backward(Context& ctx, const SwigluBackwardArgs& args);

}  // namespace spillway::kernels::cpu
