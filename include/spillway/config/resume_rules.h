#pragma once
// Which keys a resumed run may change, and which would make it another run.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/config/config.h"

namespace spillway::config {

/// One key whose value is another now. Values as JSON text.
struct KeyChange {
  std::string path;
  std::string before;
  std::string now;
};

/// Leaves of the resolved configs that differ, in the order of the documentation.
std::vector<KeyChange> key_changes(const Config& before, const Config& now);

/// Throws ConfigError (one line, the diff in it) unless a run of `before` on `world_before` ranks
/// may go on as `now` on `world_now` ranks. May change: run.dir, parallel.* (at another ep or world
/// the run goes on to rounding), capacity.*, checkpoint.*, log.*, train.steps and train.eval_*;
/// train.micro_batch and train.grad_accum as long as world x micro_batch x grad_accum, the global
/// batch, stays what it was.
void check_resume(const Config& before, int64_t world_before, const Config& now, int64_t world_now);

}  // namespace spillway::config
