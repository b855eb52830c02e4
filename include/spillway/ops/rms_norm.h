#pragma once

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// RMSNorm over the last dimension; see kernels/rms_norm.h. w [N].
Variable rms_norm(Tape& tape, const Variable& x, const Variable& w, double eps);

}  // namespace spillway::ops
