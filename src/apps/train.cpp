// The trainer's program: process scope only. Exit codes are those of core/error.h.

#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "spillway/comm/mpi_runtime.h"
#include "spillway/config/json.h"
#include "spillway/core/log.h"
#include "spillway/train/ep_check.h"
#include "spillway/train/fatal_mark.h"
#include "spillway/train/memory_estimate.h"
#include "spillway/train/run_options.h"
#include "spillway/train/sampling.h"
#include "spillway/train/trainer.h"

namespace {

using namespace spillway;

// A job without a run directory: how long a rank that fails waits for each rank below it, at most
// so many of them.
constexpr std::chrono::milliseconds kTurn{500};
constexpr int kMostTurns = 6;

void add_options(CLI::App& app, train::RunOptions& options) {
  app.add_option("--config", options.config_path, "Config file (JSON)")->required();
  app.add_option("--set", options.assignments, "Change a key: a.b.c=JSON")->allow_extra_args(false);
  app.add_option("--run-dir", options.run_dir, "Run directory (run.dir)");
  app.add_option(
      "--resume", options.resume,
      "Go on from a checkpoint: auto (the newest of the run directory), none, or its directory");
  app.add_flag("--validate", options.validate, "Check the config, print it and its memory, end");
  app.add_flag("--check-ep", options.check_ep,
               "Compare two steps at parallel.ep with two at ep = 1, end: 0, or 1 if they differ");
  app.add_option("--sample", options.sample, "Generate N tokens from the weights of --resume, end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--prompt", options.prompt, "With --sample: text (or ids) that comes before");
  app.add_option("--temperature", options.temperature, "With --sample; 0, the likeliest token");
  app.add_option("--world", options.world, "With --validate: the number of ranks to check for");
}

int job(const train::RunOptions& options, comm::Communicator& world, train::SignalGate& signals,
        std::string& run_dir) {
  train::RunDirLock lock;
  const config::Config config = train::shared_config(world, options, &lock);
  log::configure(world.rank(), config.log.level);
  if (options.validate) {
    if (world.rank() == 0) {
      std::cout << config::to_json_text(config) << "\n"
                << train::describe_model(config, options.world > 0 ? options.world : world.size(),
                                         omp_get_max_threads())
                << std::endl;
    }
    return 0;
  }
  Context ctx(config::device(config), omp_get_max_threads());
  if (options.sample) {
    const std::string text = train::sample(ctx, world, config,
                                           {.count = *options.sample,
                                            .prompt = options.prompt.value_or(""),
                                            .temperature = options.temperature.value_or(0.0)});
    if (world.rank() == 0) std::cout << text << std::endl;
    world.barrier();
    return 0;
  }
  if (options.check_ep) {
    const train::EpCheckResult result = train::check_ep(ctx, world, config);
    if (world.rank() == 0) std::cout << result.text << std::endl;
    world.barrier();
    return static_cast<int>(result.agrees ? ExitCode::kDone : ExitCode::kOther);
  }
  run_dir = config.run.dir;
  train::Trainer trainer(ctx, world, config, signals);
  trainer.run();
  if (world.rank() == 0) std::cout << "\n" << trainer.summary_text() << std::endl;
  world.barrier();
  return 0;
}

/// Runs the job; the first rank that fails says so, and ends all others through MPI.
int guarded(const train::RunOptions& options, comm::Communicator& world, comm::MpiRuntime* mpi,
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
  if (run_dir.empty()) {
    // No place for a mark: what all ranks run into is said by the lowest, which ends the job.
    std::this_thread::sleep_for(kTurn * std::min(world.rank(), kMostTurns));
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
  train::RunOptions options;
  CLI::App app{"Spillway: trains Mixture-of-Experts language models"};
  add_options(app, options);
  const bool launched = comm::MpiRuntime::launched();
  std::unique_ptr<comm::MpiRuntime> mpi;
  if (launched) mpi = std::make_unique<comm::MpiRuntime>(&argc, &argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool speaks = !launched || mpi->world_rank() == 0;
    if (error.get_exit_code() == 0) return speaks ? app.exit(error) : 0;  // --help
    if (speaks) std::cerr << error.what() << " (--help lists the options)" << std::endl;
    return static_cast<int>(ExitCode::kConfig);
  }
  const auto world = launched ? comm::make_mpi_world() : comm::make_self_communicator();
  return guarded(options, *world, mpi.get(), signals);
}
