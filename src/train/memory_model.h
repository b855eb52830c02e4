#pragma once
// A training step of one rank by what it holds.

#include "memory_ops.h"
#include "spillway/config/config.h"

namespace spillway::train::memory {

/// What the estimate stands on besides the config.
struct StepFacts {
  int64_t world = 1;
  int64_t threads = 1;
  std::vector<int64_t> capacity;  ///< slots of each MoE layer
  int64_t rows_sent = 0;          ///< of a rank, layer and micro-batch, to other ranks
};

/// Weights, gradients, optimizer state, and as many steps as it takes until nothing changes from
/// step to step.
void walk_training(const config::Config& config, const StepFacts& facts, Ledger& ledger);

}  // namespace spillway::train::memory
