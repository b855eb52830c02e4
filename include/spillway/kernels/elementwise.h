#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// out = a + b, equal shapes, one floating dtype; out may be a or b.
void add(Context& ctx, const Tensor& a, const Tensor& b, Tensor& out);
/// acc += x, summed in the accumulator dtype; the dtypes may differ (bf16 into f32).
void add_into(Context& ctx, const Tensor& x, Tensor& acc);
/// x *= factor, in place.
void scale_in_place(Context& ctx, double factor, Tensor& x);
/// to = from, converted; any two floating dtypes, equal shapes.
void cast(Context& ctx, const Tensor& from, Tensor& to);
/// Sum of squares in f64, in a fixed order that does not depend on the number of threads. Of f32
/// and bf16 it is finite exactly when every element is.
double sum_squares(Context& ctx, const Tensor& x);
/// A 64-bit checksum of the bytes, equal on every machine of one byte order; position matters.
uint64_t checksum(const Tensor& x);

}  // namespace spillway::kernels
