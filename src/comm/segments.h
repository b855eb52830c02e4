#pragma once
// Checks that every transport makes before it moves rows.

#include <span>

#include "spillway/comm/communicator.h"

namespace spillway::comm {

/// Throws Error naming the segment, the field and what is allowed. `what`: "send" or "receive".
void check_segments(std::span<const Segment> segments, const char* what, int rank, int size);

}  // namespace spillway::comm
