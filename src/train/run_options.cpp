#include "spillway/train/run_options.h"

#include <cmath>
#include <iomanip>

#include "spillway/config/json.h"
#include "spillway/config/validate.h"
#include "spillway/core/log.h"
#include "spillway/train/fatal_mark.h"
#include "spillway/train/resume.h"
#include "spillway/train/sampling.h"
#include "wire.h"

namespace spillway::train {
namespace {

/// Where --sample takes its weights from; everything about it that can be wrong.
std::string sampled_weights(const RunOptions& options, const config::Config& config) {
  const double temperature = options.temperature.value_or(0.0);
  if (!std::isfinite(temperature) || temperature < 0.0) {
    throw ConfigError(str("--temperature ", temperature, "; allowed: 0 (the likeliest) and above"));
  }
  encode_prompt(config, options.prompt.value_or(""));
  return resolve_weights(config);
}

/// Everything that can be wrong before anything is allocated.
std::string checked_config(const RunOptions& options, int world, bool launched, RunDirLock& lock) {
  if (options.world > 0 && !options.validate) {
    throw ConfigError(str("--world ", options.world, ": allowed with --validate only"));
  }
  if (options.sample && options.validate) {
    throw ConfigError("--sample: not allowed with --validate");
  }
  if (options.check_ep && (options.validate || options.sample || !options.resume.empty())) {
    throw ConfigError("--check-ep: not allowed with --validate, --sample or --resume");
  }
  if (!options.sample && (options.prompt || options.temperature)) {
    throw ConfigError("--prompt and --temperature: allowed with --sample only");
  }
  std::vector<std::string> assignments = options.assignments;
  // In quotes: a directory may be called 2027 or true.
  if (!options.run_dir.empty())
    assignments.push_back(str("run.dir=", std::quoted(options.run_dir)));
  if (!options.resume.empty()) {
    assignments.push_back(str("checkpoint.resume=", std::quoted(options.resume)));
  }
  config::Config config = config::load(options.config_path, assignments);
  const int ranks = options.world > 0 ? options.world : world;
  // Sampling gives the same at any ep: one process may hold all experts.
  if (options.sample && config.parallel.ep > 0 && ranks % config.parallel.ep != 0) {
    config.parallel.ep = 1;
  }
  for (const std::string& warning :
       config::validate(config, ranks, {.accept_cuda = options.validate})) {
    if (!options.sample) log::warning(warning);  // they are about training
  }
  if (!options.validate) {
    if (config.parallel.transport == config::Transport::kMpi && !launched) {
      throw ConfigError("parallel.transport: \"mpi\" needs mpirun; allowed without it: auto, self");
    }
    if (options.sample) {
      config.checkpoint.resume = sampled_weights(options, config);
      return config::to_json_text(config);
    }
    if (options.check_ep) return config::to_json_text(config);  // touches no run directory
    // Locked before it is looked at: another job may be writing its checkpoints there.
    const bool resuming = config.checkpoint.resume != config::kNoResume;
    lock = prepare_run_dir(config.run.dir, config.log.metrics, resuming);
    config.checkpoint.resume = resolve_resume(config, ranks);
    // With a checkpoint the trainer does it, once all of it has been read and found sound.
    const bool from_the_start = config.checkpoint.resume == config::kNoResume;
    if (resuming && from_the_start) rewind_run_dir(config, config.checkpoint.resume);
    remove_fatal_mark(config.run.dir);
  } else {
    config.checkpoint.resume = resolve_resume(config, ranks);
  }
  return config::to_json_text(config);
}

}  // namespace

config::Config shared_config(comm::Communicator& world, const RunOptions& options,
                             RunDirLock* lock) {
  RunDirLock held_here;
  int code = static_cast<int>(ExitCode::kDone);
  std::string text;
  if (world.rank() == 0) {
    try {
      text = checked_config(options, world.size(), world.name() != "self",
                            lock != nullptr ? *lock : held_here);
    } catch (const Error& error) {
      code = static_cast<int>(error.exit_code());
      text = error.what();
    } catch (const std::exception& error) {
      code = static_cast<int>(ExitCode::kOther);
      text = error.what();
    }
  }
  WireWriter writer;
  writer.put(code);
  writer.put(std::vector<char>(text.begin(), text.end()));
  std::vector<std::byte> message = std::move(writer.bytes());
  world.broadcast_from_root(message);
  WireReader reader(message);
  std::vector<char> characters;
  reader.get(code);
  reader.get(characters);
  text.assign(characters.begin(), characters.end());
  if (code != static_cast<int>(ExitCode::kDone)) {
    throw SharedError(text, static_cast<ExitCode>(code));
  }
  return config::parse(text);
}

}  // namespace spillway::train
