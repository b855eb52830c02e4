// Benchmarks of the programs' parts, one JSON object a line on stdout: process scope only.

#include <omp.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "spillway/comm/mpi_runtime.h"
#include "spillway/config/config.h"
#include "spillway/core/log.h"
#include "spillway/train/matmul_timer.h"
#include "spillway/train/model_flops.h"
#include "spillway/train/run_options.h"
#include "spillway/train/step_timer.h"

namespace {

using namespace spillway;
using Json = nlohmann::ordered_json;

struct Options {
  std::string config_path;
  std::vector<std::string> assignments;
  int64_t steps = 10, warmup = 3, m = 2048, n = 2048, k = 2048, repeat = 10;
  std::string dtype = "f32";
};

void add_commands(CLI::App& app, Options& options) {
  const CLI::Range count(int64_t{1}, int64_t{1} << 20);
  app.option_defaults()->always_capture_default();  // --help shows them; subcommands inherit it
  CLI::App* step = app.add_subcommand("step", "A training step on random bytes");
  step->add_option("--config", options.config_path, "Config file (JSON)")->required();
  step->add_option("--set", options.assignments, "Change a key: a.b.c=JSON")
      ->allow_extra_args(false);
  step->add_option("--steps", options.steps, "Steps that are timed")->check(count);
  step->add_option("--warmup", options.warmup, "Steps before them")->check(CLI::NonNegativeNumber);
  CLI::App* matmul = app.add_subcommand("matmul", "A plain product [m,k] x [k,n]");
  matmul->add_option("--m", options.m)->check(count);
  matmul->add_option("--n", options.n)->check(count);
  matmul->add_option("--k", options.k)->check(count);
  matmul->add_option("--dtype", options.dtype)->check(CLI::IsMember({"f32", "bf16"}));
  matmul->add_option("--repeat", options.repeat, "Products that are timed")->check(count);
  app.require_subcommand(1);
}

Json time_step(const Options& options, comm::Communicator& world) {
  const config::Config config =
      train::step_timer_config(world, options.config_path, options.assignments);
  Context ctx(Device::kCpu, omp_get_max_threads());
  const auto times = train::time_steps(ctx, world, config, options.warmup, options.steps);
  const train::Spread ms = train::spread(times.ms);
  const double seconds = ms.median / 1000.0;
  return {{"bench", "step"},
          {"config", options.config_path},
          {"dtype", dtype_name(config::compute_dtype(config))},
          {"world", world.size()},
          {"ep", config.parallel.ep},
          {"threads", ctx.num_threads()},
          {"cpu", train::cpu_model()},
          {"step_ms", {{"median", ms.median}, {"min", ms.min}, {"max", ms.max}}},
          {"tokens_per_s", static_cast<double>(times.tokens) / seconds},
          // 6 x active parameters + causal attention; 6 x active matrix parameters alone.
          {"gflops", train::step_flops(config, world.size()) / seconds / 1e9},
          {"gflops_without_attention", train::matrix_flops(config, world.size()) / seconds / 1e9},
          {"mem_peak_bytes", times.mem_peak_bytes},
          {"loss", times.loss}};
}

Json time_matmul(const Options& o) {
  Context ctx(Device::kCpu, omp_get_max_threads());
  const DType dtype = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const auto ms = train::spread(train::time_matmul(ctx, o.m, o.n, o.k, dtype, o.repeat));
  const double gflop = 2e-9 * static_cast<double>(o.m * o.n * o.k);
  return {{"bench", "matmul"},
          {"m", o.m},
          {"n", o.n},
          {"k", o.k},
          {"dtype", o.dtype},
          {"threads", ctx.num_threads()},
          {"cpu", train::cpu_model()},
          {"ms", {{"median", ms.median}, {"min", ms.min}, {"max", ms.max}}},
          {"gflops", gflop / (ms.median / 1000.0)}};
}

}  // namespace

int main(int argc, char** argv) {
  log::configure(0, log::Level::kWarning);
  Options options;
  CLI::App app{"Spillway: benchmarks, JSON lines out"};
  add_commands(app, options);
  std::unique_ptr<comm::MpiRuntime> mpi;
  if (comm::MpiRuntime::launched()) mpi = std::make_unique<comm::MpiRuntime>(&argc, &argv);
  const bool speaks = !mpi || mpi->world_rank() == 0;
  try {
    app.parse(argc, argv);
    const auto world = mpi ? comm::make_mpi_world() : comm::make_self_communicator();
    const Json line =
        app.got_subcommand("step") ? time_step(options, *world) : time_matmul(options);
    if (speaks) std::cout << line.dump() << std::endl;
    return 0;
  } catch (const CLI::ParseError& error) {  // every rank has it, as it has a SharedError
    if (error.get_exit_code() == 0) return speaks ? app.exit(error) : 0;  // --help
    if (speaks) std::cerr << error.what() << " (--help lists the options)" << std::endl;
    return static_cast<int>(ExitCode::kConfig);
  } catch (const train::SharedError& error) {
    if (speaks) std::cerr << error.what() << std::endl;
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const Error*>(&error);
    const auto code = static_cast<int>(ours != nullptr ? ours->exit_code() : ExitCode::kOther);
    std::cerr << error.what() << std::endl;
    if (mpi) mpi->abort(code);
    return code;
  }
}
