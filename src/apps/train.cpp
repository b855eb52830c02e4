// The trainer's program: process scope only. Exit codes are those of core/error.h.

#include <omp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <thread>

#include "spillway/config/json.h"
#include "spillway/config/validate.h"
#include "spillway/core/log.h"
#include "spillway/train/fatal_mark.h"
#include "spillway/train/memory_estimate.h"
#include "spillway/train/run_dir.h"
#include "spillway/train/shared_config.h"
#include "spillway/train/trainer.h"

namespace {

using namespace spillway;

struct Options {
  std::string config_path;
  std::vector<std::string> assignments;
  std::string run_dir;
  std::string resume;
  bool validate = false;
  bool check_ep = false;
  int sample = 0;
  std::string prompt;
  int world = 0;
};

void add_options(CLI::App& app, Options& options) {
  app.add_option("--config", options.config_path, "Config file (JSON)")->required();
  app.add_option("--set", options.assignments, "Change a key: a.b.c=JSON")->allow_extra_args(false);
  app.add_option("--run-dir", options.run_dir, "Run directory (run.dir)");
  app.add_option("--resume", options.resume, "auto, none or a checkpoint directory");
  app.add_flag("--validate", options.validate, "Check the config, print it and its memory, end");
  app.add_option("--world", options.world, "With --validate: the number of ranks to check for");
  app.add_flag("--check-ep", options.check_ep, "Compare ep = 1 with the configured ep");
  app.add_option("--sample", options.sample, "Tokens to sample from a checkpoint");
  app.add_option("--prompt", options.prompt, "Text to start from");
}

/// On rank 0 only: everything that can be wrong before anything is allocated.
std::string checked_config(const Options& options, int world) {
  if (options.check_ep) throw ConfigError("--check-ep: not in this version");
  if (options.sample > 0) throw ConfigError("--sample: not in this version (no checkpoints yet)");
  if (options.world > 0 && !options.validate) throw ConfigError("--world: only with --validate");
  std::vector<std::string> assignments = options.assignments;
  if (!options.run_dir.empty()) assignments.push_back("run.dir=" + options.run_dir);
  if (!options.resume.empty()) assignments.push_back("checkpoint.resume=" + options.resume);
  const config::Config config = config::load(options.config_path, assignments);
  for (const std::string& warning :
       config::validate(config, world, {.accept_cuda = options.validate})) {
    log::warning(warning);
  }
  if (!options.validate) {
    train::prepare_run_dir(config.run.dir, config.log.metrics);
    train::remove_fatal_mark(config.run.dir);
  }
  return config::to_json_text(config);
}

int job(const Options& options, comm::Communicator& world, train::SignalGate& signals,
        std::string& run_dir) {
  const int ranks = options.world > 0 ? options.world : world.size();
  const config::Config config =
      train::share_config(world, [&] { return checked_config(options, ranks); });
  log::configure(world.rank(), config.log.level);
  if (options.validate) {
    if (world.rank() == 0) {
      std::cout << config::to_json_text(config) << "\n"
                << train::describe_model(config, ranks) << std::endl;
    }
    return 0;
  }
  run_dir = config.run.dir;
  Context ctx(config::device(config), omp_get_max_threads());
  train::Trainer trainer(ctx, world, config, signals);
  trainer.run();
  if (world.rank() == 0) std::cout << "\n" << trainer.summary_text() << std::endl;
  world.barrier();
  return 0;
}

/// Runs the job; the first rank that fails says so, and ends all others through MPI.
int guarded(const Options& options, comm::Communicator& world, comm::MpiRuntime* mpi,
            train::SignalGate& signals) {
  std::string run_dir, message;
  int code = static_cast<int>(ExitCode::kOther);
  try {
    return job(options, world, signals, run_dir);
  } catch (const train::SharedError& error) {
    // Every rank has it: one speaks, all end in good order.
    if (world.rank() == 0) std::cerr << error.what() << std::endl;
    world.barrier();
    return static_cast<int>(error.exit_code());
  } catch (const Error& error) {
    message = error.what();
    code = static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (run_dir.empty() || train::claim_fatal_mark(run_dir, world.rank(), message)) {
    std::cerr << "[rank " << world.rank() << "] " << message << std::endl;
  } else {
    // The rank that made the mark must get its line out before the job is ended.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  if (mpi != nullptr) mpi->abort(code);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  train::SignalGate signals;  // before any thread starts
  log::configure(0, log::Level::kInfo);
  Options options;
  CLI::App app{"Spillway: trains Mixture-of-Experts language models"};
  add_options(app, options);
  const bool launched = comm::MpiRuntime::launched();
  std::unique_ptr<comm::MpiRuntime> mpi;
  if (launched) mpi = std::make_unique<comm::MpiRuntime>(&argc, &argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool speaks = !launched || mpi->world_rank() == 0;
    const int code = speaks ? app.exit(error) : error.get_exit_code();
    return code == 0 ? 0 : static_cast<int>(ExitCode::kConfig);
  }
  const auto world = launched ? comm::make_mpi_world() : comm::make_self_communicator();
  return guarded(options, *world, mpi.get(), signals);
}
