#pragma once
// How long a training step takes: the trainer's own step on random bytes, without a data file, a
// run directory or metrics.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/comm/communicator.h"
#include "spillway/config/config.h"

namespace spillway::train {

/// The config of `bench step`: that of the file with the assignments, valid for the world, but with
/// random bytes in place of its data. Collective of the world; throws SharedError (run_options.h).
config::Config step_timer_config(comm::Communicator& world, const std::string& config_path,
                                 std::vector<std::string> assignments);

struct StepTimes {
  std::vector<double> ms;      ///< of each timed step until every rank is done, in order
  int64_t tokens = 0;          ///< of a step, whole world
  int64_t mem_peak_bytes = 0;  ///< tensors of a step, the highest rank
  double loss = 0.0;           ///< of the last step, nats a token
};

/// Collective of the world. `warmup` steps that are not timed, then `steps` that are (at least 1),
/// on bytes drawn from run.seed.
StepTimes time_steps(Context& ctx, comm::Communicator& world, const config::Config& config,
                     int64_t warmup, int64_t steps);

/// Median (the upper one of an even number), least and largest. Throws Error for no values.
struct Spread {
  double median = 0.0, min = 0.0, max = 0.0;
};
Spread spread(std::vector<double> values);

/// The processor's name as the system gives it; "unknown" when it does not.
std::string cpu_model();

}  // namespace spillway::train
