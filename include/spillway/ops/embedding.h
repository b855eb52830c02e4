#pragma once

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// Rows of w [V,H] by token id: tokens i32 [B,S] -> [B*S, H].
Variable embedding(Tape& tape, const Tensor& tokens, const Variable& w);

}  // namespace spillway::ops
