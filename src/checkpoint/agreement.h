#pragma once

#include <functional>

#include "spillway/comm/communicator.h"

namespace spillway::checkpoint {

/// Collective. Runs `work`, which must not communicate, on every rank. When it throws on some rank,
/// every rank throws the error of the lowest such rank: its text (with the rank, in a world of
/// several; cut at about 2000 characters) and its exit code.
void on_every_rank(comm::Communicator& world, const std::function<void()>& work);

}  // namespace spillway::checkpoint
