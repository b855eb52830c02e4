#pragma once

#include "spillway/kernels/attention.h"

namespace spillway::kernels::cpu {

void attention(Context& ctx, const AttentionArgs& args);
void attention_backward(Context& ctx, const AttentionBackwardArgs& args);
int64_t attention_workspace_bytes(const AttentionSizes& sizes, DType dtype, int64_t threads);
int64_t attention_backward_workspace_bytes(const AttentionSizes& sizes, DType dtype,
                                           int64_t threads);

}  // namespace spillway::kernels::cpu
