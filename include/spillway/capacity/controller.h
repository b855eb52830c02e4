#pragma once
// The capacities of all MoE layers over a run: what they start from, how they follow the demand,
// and what a checkpoint keeps of that. Host only and the same on every rank of the world.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/capacity/config.h"
#include "spillway/capacity/layer_history.h"
#include "spillway/capacity/policy.h"
#include "spillway/capacity/policy_table.h"

namespace spillway::capacity {

/// What one optimizer step showed, reduced (maximum) over all ranks of the world and all
/// micro-batches. One entry a MoE layer, in slots.
struct StepDemand {
  std::vector<int64_t> demand;        ///< maximum of total_recv_tokens
  std::vector<int64_t> capacity_end;  ///< capacity after growing; empty = nothing grew
};

/// One layer's capacity is another from the next step on.
struct CapacityChange {
  int64_t layer = 0;  ///< index among the MoE layers
  int64_t old_capacity = 0;
  int64_t new_capacity = 0;
  std::string reason;
};

/// What a checkpoint keeps. Vectors have one entry a MoE layer.
struct ControllerState {
  std::string policy;
  int64_t observed_steps = 0;
  std::vector<int64_t> worst_case_slots;  ///< tells whether the layers are still the same, ...
  std::vector<int64_t> balanced_slots;    ///< ... also over another ep, which this alone may show
  std::vector<int64_t> start_capacities;  ///< tells whether the config still asks for the same
  std::vector<int64_t> capacities;
  std::vector<std::vector<int64_t>> demands;  ///< history, oldest first
  std::vector<std::vector<double>> policy_states;
};

/// True when capacity is the worst case whatever the policy says: at ep = 1, where it differs from
/// the balanced demand by padding only, unless the policy is not adaptive and overflow drops or
/// skips.
bool pinned_to_worst_case(const CapacityConfig& config, int64_t ep);

class Controller {
 public:
  /// `layers`: one entry a MoE layer, `capacity` ignored. Throws ConfigError on an unknown policy,
  /// Error on facts that contradict each other.
  Controller(const CapacityConfig& config, std::vector<LayerFacts> layers, int64_t ep);

  /// In force for the next step, in slots, one a MoE layer. Before the first step: `initial` for
  /// adaptive policies, the policy's own size for the others, the worst case where pinned.
  std::vector<int64_t> capacities() const;
  /// Takes in a finished step. A layer that grew keeps the larger capacity until an adaptive
  /// policy lowers it. Throws when the sizes are wrong or a capacity fell during the step.
  void observe(const StepDemand& step);
  /// The changes after step `step` (1-based), already in force when this returns. Empty between
  /// intervals, during the warm-up of an adaptive policy and where pinned. A policy that is not
  /// adaptive changes nothing, but scope "model" still carries a grown capacity to all layers.
  std::vector<CapacityChange> decide(int64_t step);

  /// The config key to name when a layer overflows now ("capacity.fixed.slots").
  std::string_view size_key() const;
  bool in_warm_up() const;
  int64_t observed_steps() const { return observed_steps_; }

  ControllerState state() const;
  /// Takes up a saved state. False, and nothing changes, when it belongs to another policy or
  /// other layers. When the config asks for other start capacities than it did, those win, except
  /// after the warm-up of an adaptive policy.
  bool restore(const ControllerState& saved);

 private:
  struct Layer {
    LayerFacts facts;
    std::unique_ptr<Policy> policy;
    LayerHistory history;
    int64_t start_capacity;
  };
  int64_t start_capacity(Policy& policy, const LayerFacts& facts) const;
  int64_t clamp(int64_t slots, const LayerFacts& facts) const;
  std::vector<Wanted> wanted();

  CapacityConfig config_;
  const PolicyEntry* entry_;
  bool pinned_;
  int64_t observed_steps_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace spillway::capacity
