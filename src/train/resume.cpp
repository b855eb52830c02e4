#include "spillway/train/resume.h"

#include <filesystem>

#include "spillway/checkpoint/checkpoint.h"
#include "spillway/config/json.h"
#include "spillway/config/resume_rules.h"
#include "spillway/core/log.h"
#include "spillway/metrics/jsonl_cut.h"

namespace spillway::train {

namespace fs = std::filesystem;

namespace {

/// The directory of a checkpoint, given it or a run directory.
std::string checkpoint_in(const std::string& dir) {
  std::error_code failure;
  if (!fs::is_directory(dir, failure)) {
    throw DataError(str("checkpoint.resume: '", dir, "' is no directory"));
  }
  if (fs::exists(fs::path(dir) / "manifest.json", failure)) return dir;
  const std::optional<std::string> newest = checkpoint::find_newest(dir);
  if (!newest) throw DataError(str("checkpoint.resume: '", dir, "' holds no committed checkpoint"));
  return *newest;
}

}  // namespace

std::string resolve_resume(const config::Config& config, int64_t world) {
  const std::string& wanted = config.checkpoint.resume;
  if (wanted == config::kNoResume) return wanted;
  std::string dir;
  if (wanted == config::kAutoResume) {
    dir = checkpoint::find_newest(config.run.dir).value_or("");
    if (dir.empty()) return config::kNoResume;
  } else {
    dir = checkpoint_in(wanted);
  }
  const checkpoint::RunState state = checkpoint::read_state(dir);
  config::check_resume(config::parse(state.config_json, dir), state.world, config, world);
  if (config.train.steps < state.step) {
    throw ConfigError(str("train.steps is ", config.train.steps, "; allowed: at least ", state.step,
                          ", the step of the checkpoint"));
  }
  return dir;
}

void rewind_run_dir(const config::Config& config, const std::string& resume) {
  checkpoint::RunState state;
  if (resume != config::kNoResume) state = checkpoint::read_state(resume);
  const int64_t step = state.step;
  checkpoint::set_aside_after(config.run.dir, step);
  const int64_t lines =
      metrics::cut_after(config.run.dir + "/" + config.log.metrics, step, state.evaluation_due);
  if (lines > 0) {
    log::info("removed ", lines, " lines of metrics of steps after ", step,
              ": they will be made again");
  }
}

}  // namespace spillway::train
