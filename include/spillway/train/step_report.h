#pragma once
// The one world message of a step: every rank reports to rank 0, rank 0 reduces in rank order and
// broadcasts what all act upon. The bits are the same everywhere by construction.

#include <array>
#include <cstdint>
#include <vector>

#include "spillway/autograd/tape.h"
#include "spillway/comm/communicator.h"
#include "spillway/moe/layer.h"
#include "spillway/ops/save_names.h"
#include "spillway/runtime/allocator.h"
#include "spillway/runtime/counters.h"

namespace spillway::train {

/// Peaks by purpose, in the order of `Purpose`.
using PeakBytes = std::array<int64_t, kNumPurposes>;
PeakBytes peak_bytes(const Allocator& allocator);

/// Peaks of what named saves hold, in the order of ops::kHeldNames.
using SavedPeaks = std::array<int64_t, ops::kHeldNames.size()>;
SavedPeaks saved_peaks(const autograd::SavedBytes& saved);

/// What one rank knows after backward and gradient sync.
struct RankReport {
  double norm_squares = 0.0;  ///< share of the gradient's squared norm (optim/grad_norm.h)
  int64_t finite = 1;         ///< loss and gradients of this rank
  int64_t skip = 0;           ///< an overflow under `on_overflow: skip`
  int64_t stop = 0;           ///< this rank was asked to stop
  int64_t checkpoint = 0;     ///< this rank was asked for a checkpoint
  double loss_sum = 0.0;
  double aux_loss = 0.0;
  double z_loss = 0.0;
  int64_t mem_peak_bytes = 0;
  PeakBytes peak_by_purpose{};
  SavedPeaks saved_peaks{};
  int64_t dropped_assignments = 0;  ///< by this rank as receiver
  CounterSet counters;
  CounterSet backward_counters;
  CounterSet avoided_counters;
  std::vector<moe::LayerRecord> layers;  ///< in the order in which they ran
};

/// What all ranks agree on. Vectors have one entry a MoE layer.
struct StepAgreement {
  double grad_norm = 0.0;
  int64_t finite = 1;
  int64_t skip = 0;
  int64_t stop = 0;
  int64_t checkpoint = 0;
  double loss_sum = 0.0;
  double aux_loss = 0.0;
  double z_loss = 0.0;
  int64_t mem_peak_bytes = 0;
  PeakBytes peak_by_purpose{};            ///< of each the highest of all ranks
  SavedPeaks saved_peaks{};               ///< of each the highest of all ranks
  int64_t all_to_all_bytes = 0;           ///< summed over the world
  int64_t backward_all_to_all_bytes = 0;  ///< of it in backward
  int64_t avoided_all_to_all_bytes = 0;   ///< not in it: what saved dispatches spared
  int64_t counters_differ_on = -1;  ///< first rank whose counters differ from rank 0's; -1 none
  int64_t dropped_assignments = 0;
  std::vector<int64_t> demand;        ///< maximum over ranks and micro-batches, slots
  std::vector<int64_t> capacity_end;  ///< maximum over the world, slots
  /// [E] each: assignments before drops, summed over the world and all micro-batches.
  std::vector<std::vector<int64_t>> expert_counts;
};

struct StepMessage {
  StepAgreement agreement;
  /// Rank 0 only: all reports, in rank order.
  std::vector<RankReport> reports;
};

/// Collective of the world. `num_moe_layers` sizes the vectors.
StepMessage exchange_reports(comm::Communicator& world, const RankReport& mine,
                             int64_t num_moe_layers);

}  // namespace spillway::train
