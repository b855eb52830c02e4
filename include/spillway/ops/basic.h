#pragma once
// Differentiable functions without a kernel of their own worth a file.

#include <span>

#include "spillway/autograd/tape.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// a + b, equal shapes and dtypes. When a region is computed again and an input has no value, the
/// sum has none either: nobody reads it.
Variable add(Tape& tape, const Variable& a, const Variable& b);

/// The same elements under another shape.
Variable reshape(Tape& tape, const Variable& x, Shape shape);

/// sum_i weights[i] * terms[i] of single-element variables of one accumulator dtype; shape [1].
Variable weighted_sum(Tape& tape, std::span<const Variable> terms, std::span<const double> weights);

/// The element of a single-element tensor in double.
double scalar_value(const Tensor& x);
/// A [1] tensor of a floating dtype that holds `value`, rounded.
Tensor scalar_tensor(Context& ctx, DType dtype, double value);

}  // namespace spillway::ops
