#pragma once
// Layers and step series shared by the tests of the capacity module.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/capacity/controller.h"

namespace spillway::capacity {

inline LayerFacts facts(int64_t alignment, int64_t worst_case, int64_t balanced,
                        int64_t capacity = 0) {
  return {.alignment = alignment,
          .worst_case_slots = worst_case,
          .balanced_slots = balanced,
          .capacity = capacity};
}

inline CapacityConfig policy_config(const std::string& policy) {
  CapacityConfig config;
  config.policy = policy;
  return config;
}

/// An adaptive controller without warm-up: window 4, no margin, patience 3.
inline CapacityConfig quick_peak() {
  CapacityConfig config = policy_config("peak");
  config.peak = {.window_steps = 4, .margin = 0, .shrink_patience = 3};
  config.warmup_steps = 0;
  return config;
}

}  // namespace spillway::capacity
