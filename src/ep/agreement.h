#pragma once
// What ranks must agree on before they go on together. Every function is a collective and throws
// the same text on every rank: none is left waiting for one that has thrown.

#include <string>

#include "spillway/comm/communicator.h"
#include "spillway/ep/config.h"

namespace spillway::ep {

/// ConfigError naming the first field that differs, the ranks and both values.
void agree_on_config(comm::Communicator& world, const EpConfig& config);

/// A random number of rank 0, never 0, on every rank.
uint64_t agree_on_session_id(comm::Communicator& world);

/// Error saying how many routing handles are alive, and on which ranks.
void agree_on_no_live_handles(comm::Communicator& world, int64_t live_here);

/// Throws Error with the text of the lowest rank that has one. Called by all ranks once any of
/// them is known to have one; `mine` is empty on the others.
[[noreturn]] void throw_first_problem(comm::Communicator& group, const std::string& mine);

}  // namespace spillway::ep
