#pragma once
// Sizes that follow from a config, judged before anything computes with them in 64 bits.

#include <cstdint>

#include "spillway/config/config.h"

namespace spillway::config {

/// Bytes of one slot of a receive buffer: a row of `hidden` and its gate (f32).
int64_t receive_row_bytes(const Config& config);

/// Throws ConfigError when a size of the run does not fit 64 bits: tokens, parameters, rotary
/// table, logits, worst-case receive buffers. Every number is already known to be positive.
void check_sizes(const Config& config, int64_t world_size);

}  // namespace spillway::config
