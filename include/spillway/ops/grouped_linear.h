#pragma once

#include "spillway/autograd/tape.h"
#include "spillway/ops/zones.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// y[r] = w[g] x[r] for the rows r of zone g. x [C,K], w [G,N,K], y [C,N]; other rows of y are
/// unspecified.
Variable grouped_linear(Tape& tape, const Variable& x, const Variable& w, const ZonesPtr& zones);

}  // namespace spillway::ops
