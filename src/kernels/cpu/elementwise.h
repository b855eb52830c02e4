#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels::cpu {

void add(Context& ctx, const Tensor& a, const Tensor& b, Tensor& out);
void add_into(Context& ctx, const Tensor& x, Tensor& acc);
void scale_in_place(Context& ctx, double factor, Tensor& x);
void cast(Context& ctx, const Tensor& from, Tensor& to);
/// `partial`: f64, one element a chunk of `element_chunks`.
double sum_squares(Context& ctx, const Tensor& x, Tensor& partial);
uint64_t checksum(const Tensor& x);

}  // namespace spillway::kernels::cpu
