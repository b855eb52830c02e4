#include "spillway/train/capacity_manager.h"

namespace spillway::train {

using capacity::OnOverflow;

CapacityManager::CapacityManager(Context& ctx, comm::Topology& topology,
                                 const config::Config& config,
                                 const std::optional<capacity::ControllerState>& saved,
                                 int64_t first_epoch)
    : config_(config),
      session_(ctx, topology, first_epoch),
      layer_ids_(config::decoder_config(config).moe_layers()) {
  if (layer_ids_.empty()) return;
  facts_ = config::layer_facts(config);
  controller_ = std::make_unique<capacity::Controller>(
      config.capacity, std::vector<capacity::LayerFacts>(layer_ids_.size(), facts_),
      config.parallel.ep);
  if (saved) restored_ = controller_->restore(*saved);
  session_.bootstrap(ep_config());
}

std::optional<capacity::ControllerState> CapacityManager::state() const {
  if (!controller_) return std::nullopt;
  return controller_->state();
}

ep::EpConfig CapacityManager::ep_config() const {
  const OnOverflow action = config_.capacity.on_overflow;
  return {.ep = config_.parallel.ep,
          .num_experts = config_.moe.experts,
          .hidden = config_.model.hidden,
          .top_k = config_.moe.top_k,
          .alignment = config_.moe.alignment,
          .dtype = config::compute_dtype(config_),
          .max_tokens_per_rank = config::tokens_per_micro_batch(config_),
          .recv_capacity_per_rank = controller_->capacities(),
          .drop_on_overflow = action == OnOverflow::kDrop || action == OnOverflow::kSkip,
          .grow_on_overflow = action == OnOverflow::kGrow,
          .grow_margin = config_.capacity.grow_margin,
          .drop_order = config_.ep.drop_order,
          .drop_seed = static_cast<uint64_t>(config_.ep.drop_seed),
          .renormalize_kept = config_.ep.renormalize_kept,
          .poison = config_.ep.poison,
          .capacity_key = std::string(controller_->size_key()),
          .layer_ids = layer_ids_};
}

std::vector<int64_t> CapacityManager::capacities() const {
  return controller_ ? controller_->capacities() : std::vector<int64_t>{};
}

std::vector<metrics::ReconfigureRecord> CapacityManager::after_step(
    int64_t step, const StepAgreement& agreement) {
  std::vector<metrics::ReconfigureRecord> records;
  if (!controller_) return records;
  controller_->observe({.demand = agreement.demand, .capacity_end = agreement.capacity_end});
  const std::vector<capacity::CapacityChange> changes = controller_->decide(step);
  // After its warm-up another key sizes an adaptive policy.
  session_.set_capacity_key(std::string(controller_->size_key()));
  if (changes.empty()) {
    // A layer that grew in one group has the larger capacity everywhere from the next step on.
    for (size_t layer = 0; layer < agreement.capacity_end.size(); ++layer) {
      const auto index = static_cast<int64_t>(layer);
      if (agreement.capacity_end[layer] > 0) {
        session_.raise_capacity(index, agreement.capacity_end[layer]);
      }
    }
    return records;
  }
  const bool buffers = config_.capacity.reconfigure == capacity::Reconfigure::kBuffers;
  const ep::ReconfigureCost cost = session_.reconfigure(
      ep_config(), buffers ? ep::ReconfigureMode::kBuffers : ep::ReconfigureMode::kCommunicator);
  for (const capacity::CapacityChange& change : changes) {
    const bool first = records.empty();
    records.push_back({.step = step,
                       .epoch = session_.epoch(),
                       .layer = layer_ids_[static_cast<size_t>(change.layer)],
                       .kind = metrics::ReconfigureKind::kPolicy,
                       .old_capacity = change.old_capacity,
                       .new_capacity = change.new_capacity,
                       .reason = change.reason,
                       .mode = buffers ? "buffers" : "communicator",
                       .drain_ms = first ? cost.drain_ms : 0.0,
                       .finalize_ms = first ? cost.finalize_ms : 0.0,
                       .init_ms = first ? cost.init_ms : 0.0,
                       .alloc_ms = first ? cost.alloc_ms : 0.0});
  }
  return records;
}

}  // namespace spillway::train
