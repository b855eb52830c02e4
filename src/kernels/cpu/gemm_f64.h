#pragma once

#include "gemm.h"

namespace spillway::kernels::cpu {

/// A product of f64 matrices on the calling thread: gradient checks and references.
void gemm_f64(Context& ctx, const Gemm& g);

}  // namespace spillway::kernels::cpu
