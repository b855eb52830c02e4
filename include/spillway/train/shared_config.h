#pragma once

#include <functional>
#include <string>

#include "spillway/comm/communicator.h"
#include "spillway/config/config.h"

namespace spillway::train {

/// An error that every rank of the world has: the job ends in good order, one rank speaks.
struct SharedError : Error {
  using Error::Error;
};

/// Collective of the world. Rank 0 runs `read`, which gives the config as JSON text or throws;
/// every rank returns that config, or throws SharedError with the same text and exit code. So a
/// file is read once, and no rank waits for one that failed.
config::Config share_config(comm::Communicator& world, const std::function<std::string()>& read);

}  // namespace spillway::train
