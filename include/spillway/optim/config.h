#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace spillway::optim {

enum class Schedule { kConstant, kCosine, kWsd };

inline constexpr std::array<std::pair<std::string_view, Schedule>, 3> kScheduleChoices{{
    {"constant", Schedule::kConstant},
    {"cosine", Schedule::kCosine},
    {"wsd", Schedule::kWsd},
}};

/// The section `optim`.
struct OptimConfig {
  /// Peak learning rate, reached at the end of the warm-up.
  double lr = 1e-3;
  /// Learning rate at the last step of cosine and wsd.
  double min_lr = 1e-4;
  /// "wsd" (warm-up, stable, decay): constant, then linear down over the last fifth of the steps.
  Schedule schedule = Schedule::kCosine;
  /// Steps of linear warm-up.
  int64_t warmup_steps = 20;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  /// Decoupled weight decay, on matrices only.
  double weight_decay = 0.1;
  /// Largest norm of the whole gradient; 0: no clipping.
  double clip = 1.0;
};

template <class V>
void visit_fields(V& v, OptimConfig& c) {
  v.field("lr", c.lr);
  v.field("min_lr", c.min_lr);
  v.choice("schedule", c.schedule, kScheduleChoices);
  v.field("warmup_steps", c.warmup_steps);
  v.field("beta1", c.beta1);
  v.field("beta2", c.beta2);
  v.field("eps", c.eps);
  v.field("weight_decay", c.weight_decay);
  v.field("clip", c.clip);
}

}  // namespace spillway::optim
