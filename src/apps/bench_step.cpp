// A training step, and a plain product beside it.
#include <omp.h>

#include "bench.h"
#include "spillway/config/config.h"
#include "spillway/train/matmul_timer.h"
#include "spillway/train/model_flops.h"
#include "spillway/train/step_timer.h"

namespace spillway::bench {

Json spread_json(const std::vector<double>& values) {
  const train::Spread spread = train::spread(values);
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Json time_step(const StepOptions& options, comm::Communicator& world) {
  const config::Config config =
      train::step_timer_config(world, options.config_path, options.assignments);
  Context ctx(Device::kCpu, omp_get_max_threads());
  const auto times = train::time_steps(ctx, world, config, options.warmup, options.steps);
  const double seconds = train::spread(times.ms).median / 1000.0;
  return {{"bench", "step"},
          {"config", options.config_path},
          {"dtype", dtype_name(config::compute_dtype(config))},
          {"world", world.size()},
          {"ep", config.parallel.ep},
          {"threads", ctx.num_threads()},
          {"cpu", train::cpu_model()},
          {"step_ms", spread_json(times.ms)},
          {"tokens_per_s", static_cast<double>(times.tokens) / seconds},
          // 6 x active parameters + causal attention; 6 x active matrix parameters alone.
          {"gflops", train::step_flops(config, world.size()) / seconds / 1e9},
          {"gflops_without_attention", train::matrix_flops(config, world.size()) / seconds / 1e9},
          {"mem_peak_bytes", times.mem_peak_bytes},
          {"loss", times.loss}};
}

Json time_matmul(const MatmulOptions& o) {
  Context ctx(Device::kCpu, omp_get_max_threads());
  const DType dtype = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const std::vector<double> ms = train::time_matmul(ctx, o.m, o.n, o.k, dtype, o.repeat);
  const double gflop = 2e-9 * static_cast<double>(o.m * o.n * o.k);
  return {{"bench", "matmul"},
          {"m", o.m},
          {"n", o.n},
          {"k", o.k},
          {"dtype", o.dtype},
          {"threads", ctx.num_threads()},
          {"cpu", train::cpu_model()},
          {"ms", spread_json(ms)},
          {"gflops", gflop / (train::spread(ms).median / 1000.0)}};
}

}  // namespace spillway::bench
