#pragma once
// The learning rate as a function of the step: no state, so that a resumed run needs nothing.

#include <cstdint>

#include "spillway/optim/config.h"

namespace spillway::optim {

/// Learning rate of step `step` (1-based) of a run of `total_steps`. Let w = warmup_steps and
/// peak = max(w, 1).
///
///   step <= w     lr * step / w; step w, or step 1 when w = 0, has lr itself
///   constant      lr
///   cosine        half a cosine from lr at step `peak` to min_lr at the last step
///                 (Loshchilov, Hutter 2017, one cycle)
///   wsd           lr, then linear to min_lr over the last ceil(total_steps / 5) steps (Hu et al.
///                 2024); a warm-up that reaches into them shortens the decay
///
/// A warm-up as long as the run or longer leaves no decay: every step is a step of it. Steps past
/// the last one have the rate of the last one. Throws Error when step, total_steps < 1 or
/// warmup_steps < 0.
double learning_rate(const OptimConfig& config, int64_t step, int64_t total_steps);

}  // namespace spillway::optim
