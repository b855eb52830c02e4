#pragma once

#include "spillway/autograd/tape.h"
#include "spillway/ops/zones.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// silu(gate) * up of a fused product x [C,2I] (gate then up) -> [C,I], on the rows of the zones,
/// times row_scale [C] (accumulator dtype) unless that is undefined. Saved as kSaveExpertAct in a
/// recompute region.
Variable swiglu(Tape& tape, const Variable& x, const Variable& row_scale, const ZonesPtr& zones);

}  // namespace spillway::ops
