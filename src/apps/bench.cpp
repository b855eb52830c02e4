// Benchmarks of the programs' parts, one JSON object a line on stdout: process scope only.

#include <CLI/CLI.hpp>
#include <iostream>

#include "bench.h"
#include "spillway/comm/mpi_runtime.h"
#include "spillway/core/log.h"
#include "spillway/train/run_options.h"

namespace {

using namespace spillway;

struct Options {
  bench::StepOptions step;
  bench::MatmulOptions matmul;
  bench::EpOptions ep;
  bench::PlanOptions plan;
};

const CLI::Range kCount(int64_t{1}, int64_t{1} << 20);
const CLI::IsMember kDtypes({"f32", "bf16"});

void add_step(CLI::App& app, bench::StepOptions& o) {
  CLI::App* step = app.add_subcommand("step", "A training step on random bytes");
  step->add_option("--config", o.config_path, "Config file (JSON)")->required();
  step->add_option("--set", o.assignments, "Change a key: a.b.c=JSON")->allow_extra_args(false);
  step->add_option("--steps", o.steps, "Steps that are timed")->check(kCount);
  step->add_option("--warmup", o.warmup, "Steps before them")->check(CLI::NonNegativeNumber);
}

void add_matmul(CLI::App& app, bench::MatmulOptions& o) {
  CLI::App* matmul = app.add_subcommand("matmul", "A plain product [m,k] x [k,n]");
  matmul->add_option("--m", o.m)->check(kCount);
  matmul->add_option("--n", o.n)->check(kCount);
  matmul->add_option("--k", o.k)->check(kCount);
  matmul->add_option("--dtype", o.dtype)->check(kDtypes);
  matmul->add_option("--repeat", o.repeat, "Products that are timed")->check(kCount);
}

template <typename RoutingOptions>
void add_routing(CLI::App& command, RoutingOptions& o) {
  command.add_option("--tokens", o.tokens, "Tokens of a rank")->check(kCount);
  command.add_option("--top-k", o.top_k, "Experts of a token")->check(kCount);
  command.add_option("--experts", o.experts, "Experts of the layer")->check(kCount);
  command.add_option("--alignment", o.alignment, "Zones begin at multiples of it")->check(kCount);
  command.add_option("--seed", o.seed, "Of the random routing");
  command.add_option("--warmup", o.warmup, "Rounds before the timed ones")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--repeat", o.repeat, "Rounds that are timed")->check(kCount);
}

void add_ep(CLI::App& app, bench::EpOptions& o) {
  CLI::App* ep = app.add_subcommand(
      "ep", "prepare + dispatch + combine against two MPI_Alltoallv of the same bytes (mpirun)");
  add_routing(*ep, o);
  ep->add_option("--hidden", o.hidden, "Elements of a row")->check(kCount);
  ep->add_option("--dtype", o.dtype)->check(kDtypes);
}

void add_plan(CLI::App& app, bench::PlanOptions& o) {
  CLI::App* plan = app.add_subcommand("plan", "Planning one rank's rows, in one process");
  add_routing(*plan, o);
  plan->add_option("--ep", o.ep, "Ranks of the group")->check(kCount);
  plan->add_option("--skew", o.skew, "Expert e is chosen in proportion to (e + 1)^-skew")
      ->check(CLI::Range(0.0, 10.0));
  plan->add_option("--capacity", o.capacity, "Fraction of the largest demand; below 1 drops rows")
      ->check(CLI::Range(0.0, 1.0));
  plan->add_option("--order", o.order, "Drop order")
      ->check(CLI::IsMember({"tail", "fair", "random", "score"}));
}

bench::Json run(const CLI::App& app, const Options& options, comm::Communicator& world) {
  if (app.got_subcommand("step")) return bench::time_step(options.step, world);
  if (app.got_subcommand("matmul")) return bench::time_matmul(options.matmul);
  if (app.got_subcommand("plan")) return bench::time_plan(options.plan);
  return bench::time_ep(options.ep, world);
}

}  // namespace

int main(int argc, char** argv) {
  log::configure(0, log::Level::kWarning);
  Options options;
  CLI::App app{"Spillway: benchmarks, JSON lines out"};
  app.option_defaults()->always_capture_default();  // --help shows them; subcommands inherit it
  app.require_subcommand(1);
  add_step(app, options.step);
  add_matmul(app, options.matmul);
  add_ep(app, options.ep);
  add_plan(app, options.plan);
  std::unique_ptr<comm::MpiRuntime> mpi;
  if (comm::MpiRuntime::launched()) mpi = std::make_unique<comm::MpiRuntime>(&argc, &argv);
  const bool speaks = !mpi || mpi->world_rank() == 0;
  try {
    app.parse(argc, argv);
    const auto world = mpi ? comm::make_mpi_world() : comm::make_self_communicator();
    const bench::Json line = run(app, options, *world);
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
