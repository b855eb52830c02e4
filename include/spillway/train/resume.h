#pragma once
// From `checkpoint.resume` to the checkpoint that a run goes on from.

#include <string>

#include "spillway/config/config.h"

namespace spillway::train {

/// Rank 0 only. What `config.checkpoint.resume` stands for: "none", or the directory of a committed
/// checkpoint whose run may go on as `config` on `world` ranks. "auto" is the newest of the run
/// directory, and "none" when it has none. Throws DataError when a directory that is named holds no
/// sound checkpoint, ConfigError (with the diff) when the config is another than the checkpoint's
/// or `train.steps` lies before it.
std::string resolve_resume(const config::Config& config, int64_t world);

/// Rank 0 only, with the run directory locked: takes back what a run resumed from `resume` (as
/// resolved) will write again: lines of metrics of later steps are removed, later checkpoints set
/// aside. Not before all ranks have loaded: a run that cannot go on must leave things as they are.
void rewind_run_dir(const config::Config& config, const std::string& resume);

}  // namespace spillway::train
