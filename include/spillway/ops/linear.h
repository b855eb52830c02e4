#pragma once

#include <optional>
#include <string_view>

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// y = x w^T. x [..., K] read as [rows, K], w [N,K], y [rows, N] in the dtype of x, or in
/// `out_dtype` (the accumulator dtype: logits). The gradient of w adds in fp32. `save_as`: the name
/// (save_names.h) under which a recompute region may keep y.
Variable linear(Tape& tape, const Variable& x, const Variable& w,
                std::optional<DType> out_dtype = std::nullopt, std::string_view save_as = {});

}  // namespace spillway::ops
