#pragma once

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// Rotary embedding of x [B,S,heads,D]; cos, sin [>= S, D/2] (see kernels/rope.h).
Variable rope(Tape& tape, const Variable& x, const Tensor& cos, const Tensor& sin);

}  // namespace spillway::ops
