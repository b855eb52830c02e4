#pragma once

#include <cstdint>
#include <vector>

#include "spillway/runtime/context.h"
#include "spillway/tensor/dtype.h"

namespace spillway::train {

/// Milliseconds of each of `repeat` plain products [m,k] x [k,n] of random f32 or bf16 matrices,
/// after a few untimed ones: what the machine gives to a step's largest part.
std::vector<double> time_matmul(Context& ctx, int64_t m, int64_t n, int64_t k, DType dtype,
                                int64_t repeat);

}  // namespace spillway::train
