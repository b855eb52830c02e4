#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/comm/communicator.h"
#include "spillway/config/config.h"
#include "spillway/train/run_dir.h"

namespace spillway::train {

/// The command line of `train`.
struct RunOptions {
  std::string config_path;
  std::vector<std::string> assignments;  ///< --set a.b.c=JSON, in order
  std::string run_dir;                   ///< --run-dir; empty: the config's
  std::string resume;                    ///< --resume; empty: the config's
  bool validate = false;
  bool check_ep = false;
  std::optional<int64_t> sample;      ///< --sample: tokens to generate in place of training
  std::optional<std::string> prompt;  ///< --prompt, with --sample only
  std::optional<double> temperature;  ///< --temperature, likewise
  int world = 0;  ///< --validate --world N: ranks to check for; 0: those that run
};

/// An error that every rank of the world has: the job ends in good order, one rank speaks.
struct SharedError : Error {
  using Error::Error;
};

/// Collective of the world. Rank 0 reads and checks the config, finds the checkpoint to go on from
/// (`checkpoint.resume` comes back as its directory, or "none") and prepares the run directory
/// unless it only validates or samples (`checkpoint.resume` is then the files of weights, and the
/// run directory is left alone); every rank returns the same config, or throws SharedError with the
/// same text and exit code. So a file is read once, and no rank waits for one that failed. `lock`
/// takes rank 0's hold on the run directory; without it the hold ends here.
config::Config shared_config(comm::Communicator& world, const RunOptions& options,
                             RunDirLock* lock = nullptr);

}  // namespace spillway::train
