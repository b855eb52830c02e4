#include "spillway/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::optim {
namespace {

/// Part of the way from step `begin` (0) to step `end` (1).
double progress(int64_t step, int64_t begin, int64_t end) {
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

}  // namespace

double learning_rate(const OptimConfig& config, int64_t step, int64_t total_steps) {
  SPILLWAY_CHECK(step >= 1, "learning rate of step ", step, ": steps count from 1");
  SPILLWAY_CHECK(total_steps >= 1, "a run of ", total_steps, " steps: at least 1");
  SPILLWAY_CHECK(config.warmup_steps >= 0, "optim.warmup_steps ", config.warmup_steps,
                 ": at least 0");
  const int64_t s = std::min(step, total_steps);
  const int64_t warmup = config.warmup_steps;
  if (s < warmup) return config.lr * static_cast<double>(s) / static_cast<double>(warmup);
  const int64_t peak = std::max<int64_t>(warmup, 1);
  if (s <= peak) return config.lr;

  // Here peak < s <= total_steps, so that no span below is empty. std::lerp is exact at both ends.
  switch (config.schedule) {
    case Schedule::kConstant:
      return config.lr;
    case Schedule::kCosine: {
      const double angle = std::numbers::pi * progress(s, peak, total_steps);
      return std::lerp(config.min_lr, config.lr, 0.5 * (1.0 + std::cos(angle)));
    }
    case Schedule::kWsd: {
      const int64_t begin = std::max(peak, total_steps - ceil_div(total_steps, 5));
      if (s <= begin) return config.lr;
      return std::lerp(config.lr, config.min_lr, progress(s, begin, total_steps));
    }
  }
  throw Error(str("optim.schedule ", static_cast<int>(config.schedule),
                  " is not one of constant, cosine, "
                  "wsd"));
}

}  // namespace spillway::optim
