#pragma once

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

struct CrossEntropyResult {
  Variable loss;          ///< [1], accumulator dtype: scale * sum of the rows' losses
  double loss_sum = 0.0;  ///< sum of the rows' losses, unscaled, f64
};

/// logits [R,V], targets i32 with R elements; `scale` is one over the global number of tokens.
/// R may be 0.
CrossEntropyResult cross_entropy(Tape& tape, const Variable& logits, const Tensor& targets,
                                 double scale);

}  // namespace spillway::ops
