#pragma once

#include <string>

namespace spillway::train {

/// Makes the run directory, or throws ConfigError naming `run.dir`: it holds metrics or checkpoints
/// of another run, is a file, or cannot be written. Rank 0 only.
void prepare_run_dir(const std::string& dir, const std::string& metrics_name);

}  // namespace spillway::train
