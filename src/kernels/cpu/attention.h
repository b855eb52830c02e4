#pragma once

#include "spillway/kernels/attention.h"

namespace spillway::kernels::cpu {

void attention(Context& ctx, const AttentionArgs& args);
void attention_backward(Context& ctx, const AttentionBackwardArgs& args);

}  // namespace spillway::kernels::cpu
