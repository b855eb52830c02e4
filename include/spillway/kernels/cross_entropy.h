#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// Negative log-likelihood of each row: loss[r] = lse[r] - logits[r, targets[r]]. logits [R,V],
/// targets i32 [R] (any rank), loss and lse [R] in the accumulator dtype. A target of -1 is
/// ignored: loss 0.
void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor& loss,
                   Tensor& lse);

/// dlogits[r,v] = scale * (softmax(logits)[r,v] - [v == target]); zero rows where ignored.
/// dlogits may be logits.
struct CrossEntropyBackwardArgs {
  const Tensor& logits;
  const Tensor& targets;
  const Tensor& lse;
  double scale = 1.0;
  Tensor& dlogits;
};
void cross_entropy_backward(Context& ctx, const CrossEntropyBackwardArgs& args);

}  // namespace spillway::kernels
