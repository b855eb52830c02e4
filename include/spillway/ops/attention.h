#pragma once

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// Causal grouped-query attention, scale 1/sqrt(D). q [B,S,Hq,D], k, v [B,S,Hk,D]; y like q.
/// Saved as kSaveAttention in a recompute region.
Variable attention(Tape& tape, const Variable& q, const Variable& k, const Variable& v);

}  // namespace spillway::ops
