#pragma once

#include "spillway/kernels/embedding.h"

namespace spillway::kernels::cpu {

void embedding(Context& ctx, const Tensor& tokens, const Tensor& w, Tensor& y);
void embedding_backward(Context& ctx, const Tensor& dy, const Tensor& tokens, Tensor& dw);

}  // namespace spillway::kernels::cpu
