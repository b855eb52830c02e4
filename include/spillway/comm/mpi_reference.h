#pragma once
// MPI's own collective, as a yardstick for `Communicator::exchange`: benchmarks and tests only.

#include <cstdint>
#include <span>

#include "spillway/comm/communicator.h"

namespace spillway::comm {

/// MPI_Alltoallv of bytes over a group made by make_mpi_world or split from one: for each peer, in
/// rank order and without gaps, `send_bytes[peer]` bytes of `send` go there and `recv_bytes[peer]`
/// come to `recv`. Collective. Throws Error naming what is wrong: a communicator of another kind,
/// other than size() counts, a count that is negative, a side of more than 2^31 - 1 bytes, or one
/// that has bytes but no address.
void all_to_all_v(Communicator& group, const void* send, std::span<const int64_t> send_bytes,
                  void* recv, std::span<const int64_t> recv_bytes);

}  // namespace spillway::comm
