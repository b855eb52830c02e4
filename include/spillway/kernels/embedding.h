#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// y[r,:] = w[tokens[r],:]. tokens i32 [R] (any rank), w [V,H], y [R,H] (any rank with last dim H).
/// An id outside [0, V) throws DataError naming the id and its position.
void embedding(Context& ctx, const Tensor& tokens, const Tensor& w, Tensor& y);

/// dw[tokens[r],:] += dy[r,:], rows in order; dw [V,H] in the accumulator dtype.
void embedding_backward(Context& ctx, const Tensor& dy, const Tensor& tokens, Tensor& dw);

}  // namespace spillway::kernels
