#include "spillway/ops/embedding.h"

#include "spillway/kernels/embedding.h"

namespace spillway::ops {

using autograd::Backward;

Variable embedding(Tape& tape, const Tensor& tokens, const Variable& w) {
  Tensor y = Tensor::empty(tape.ctx(), {tokens.numel(), w.dim(1)}, w.dtype());
  kernels::embedding(tape.ctx(), tokens, w.value(), y);
  return tape.record("embedding", std::move(y), {w}, [tokens](Backward& b) {
    kernels::embedding_backward(b.ctx(), b.grad(), tokens, b.accumulator(0));
  });
}

}  // namespace spillway::ops
