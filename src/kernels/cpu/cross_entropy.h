#pragma once

#include "spillway/kernels/cross_entropy.h"

namespace spillway::kernels::cpu {

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor& loss,
                   Tensor& lse);
void cross_entropy_backward(Context& ctx, const CrossEntropyBackwardArgs& args);

}  // namespace spillway::kernels::cpu
