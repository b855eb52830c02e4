#pragma once
// Ties the EP session to the capacity controller: what capacities hold in a step, and what changes
// between two steps.

#include <optional>
#include <vector>

#include "spillway/capacity/controller.h"
#include "spillway/config/config.h"
#include "spillway/ep/session.h"
#include "spillway/metrics/records.h"
#include "spillway/train/step_report.h"

namespace spillway::train {

class CapacityManager {
 public:
  /// World collective when the model has MoE layers: bootstraps the session. A dense model has no
  /// session; everything here is then empty. `saved`: what `state` gave in an earlier life of the
  /// run; capacities and policy go on from it where the config still asks for the same.
  CapacityManager(Context& ctx, comm::Topology& topology, const config::Config& config,
                  const std::optional<capacity::ControllerState>& saved = std::nullopt,
                  int64_t first_epoch = 0);
  /// What a checkpoint keeps; none for a dense model.
  std::optional<capacity::ControllerState> state() const;
  /// False when `saved` was of another policy or of other sizes, so the policy starts afresh.
  bool restored() const { return restored_; }

  bool has_experts() const { return controller_ != nullptr; }
  ep::Session& session() { return session_; }
  /// C of each MoE layer for the step that comes, slots.
  std::vector<int64_t> capacities() const;
  /// The same for all MoE layers.
  const capacity::LayerFacts& facts() const { return facts_; }
  const std::vector<int64_t>& layer_ids() const { return layer_ids_; }

  /// World collective, between two steps: takes in the step's demand, makes capacities equal again
  /// after growing, and carries out what the policy decides. The records say what changed; the
  /// measured cost stands in the first one of a reconfiguration, so sums over lines are right.
  std::vector<metrics::ReconfigureRecord> after_step(int64_t step, const StepAgreement& agreement);

 private:
  ep::EpConfig ep_config() const;

  const config::Config& config_;
  ep::Session session_;
  std::vector<int64_t> layer_ids_;
  capacity::LayerFacts facts_;
  std::unique_ptr<capacity::Controller> controller_;
  bool restored_ = true;
};

}  // namespace spillway::train
