#pragma once
// What named saves of recompute regions (`recompute.save`) cost, and what they avoid.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "spillway/config/config.h"
#include "spillway/train/memory_estimate.h"

namespace spillway::train {

enum class SaveState { kNo, kYes, kAlways };

struct SaveEstimate {
  std::string_view name;  ///< of ops::kHeldNames
  /// What all regions of a micro-batch hold of it on a rank when it is saved, at the capacity of
  /// the first step and an even share of the rows leaving their rank. 0: no region makes it.
  int64_t bytes = 0;
  SaveState state = SaveState::kNo;  ///< whether the config saves it
};

/// Of the config's regions; with `recompute.region` "none" what those of "layer" would hold.
std::array<SaveEstimate, ops::kHeldNames.size()> estimate_saves(const config::Config& config,
                                                                const MemoryOptions& options);

/// What a saved `dispatch` spares a rank in a step.
struct AvoidedByDispatch {
  int64_t calls = 0;             ///< prepares, and as many dispatches
  int64_t all_to_all_bytes = 0;  ///< sent to other ranks, at an even share of the rows
};
AvoidedByDispatch avoided_by_dispatch(const config::Config& config);

/// The table of `train --validate`, a line each, with a line break in front; empty for a model
/// without experts and without regions.
std::string describe_saves(const config::Config& config, const MemoryOptions& options);

}  // namespace spillway::train
