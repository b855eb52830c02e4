#pragma once

#include <optional>

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// y = x w^T. x [..., K] read as [rows, K], w [N,K], y [rows, N] in the dtype of x, or in
/// `out_dtype` (the accumulator dtype: logits). The gradient of w adds in fp32.
Variable linear(Tape& tape, const Variable& x, const Variable& w,
                std::optional<DType> out_dtype = std::nullopt);

}  // namespace spillway::ops
