#pragma once

#include <string_view>

#include "spillway/autograd/tape.h"
#include "spillway/ops/zones.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// y[r] = w[g] x[r] for the rows r of zone g. x [C,K], w [G,N,K], y [C,N]; other rows of y are
/// unspecified. `save_as`: the name (save_names.h) under which a recompute region may keep y.
Variable grouped_linear(Tape& tape, const Variable& x, const Variable& w, const ZonesPtr& zones,
                        std::string_view save_as = {});

}  // namespace spillway::ops
