#pragma once

#include <cstdint>

#include "spillway/config/config.h"

namespace spillway::train {

/// Floating-point operations of one training step of the whole world: 6 x the parameters that a
/// token multiplies with (K of E experts; the embedding look-up is none) x tokens, plus causal
/// attention, 6 x layers x heads x head_dim x seq x tokens. Nothing is taken off for drops.
double step_flops(const config::Config& config, int64_t world);

/// The same without attention and norms: 6 x elements of the matrices that a token multiplies with
/// x tokens, the usual count for comparing programs.
double matrix_flops(const config::Config& config, int64_t world);

}  // namespace spillway::train
