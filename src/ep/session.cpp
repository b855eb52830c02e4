#include "spillway/ep/session.h"

#include <algorithm>

#include "agreement.h"
#include "buffers.h"

namespace spillway::ep {

Session::Session(Context& ctx, comm::Topology& topology, int64_t first_epoch)
    : ctx_(ctx), topology_(topology), epoch_(first_epoch), buffers_(std::make_unique<Buffers>()) {}

Session::~Session() = default;

void Session::bootstrap(const EpConfig& config) {
  SPILLWAY_CHECK(!active_, "bootstrap: the session is bootstrapped already (epoch ", epoch_,
                 "); allowed: finalize first");
  agree_and_validate(config);
  start(config);
  buffers_->reserve(ctx_, capacities_, config_);
}

// Agreement first: all ranks then throw, or none, whatever is wrong with the config.
void Session::agree_and_validate(const EpConfig& config) const {
  agree_on_config(topology_.world(), config);
  validate(config);
  if (config.ep != topology_.ep()) {
    throw ConfigError(
        str("EpConfig.ep is ", config.ep, "; allowed: the topology's ep = ", topology_.ep()));
  }
}

void Session::start(const EpConfig& config) {
  if (session_id_ == 0) session_id_ = agree_on_session_id(topology_.world());
  config_ = config;
  capacities_ = config.recv_capacity_per_rank;
  active_ = true;
}

void Session::finalize() {
  if (!active_) return;
  active_ = false;
  buffers_->rows.clear();
  ++epoch_;
}

void Session::require_active(const char* where) const {
  SPILLWAY_CHECK(active_, where, ": the session is not bootstrapped");
}

void Session::require_layer(const char* where, int64_t layer) const {
  const auto num_layers = static_cast<int64_t>(capacities_.size());
  SPILLWAY_CHECK(layer >= 0 && layer < num_layers, where, ": layer is ", layer, "; allowed: 0 to ",
                 num_layers - 1);
}

int64_t Session::capacity(int64_t layer) const {
  require_active("capacity");
  require_layer("capacity", layer);
  return capacities_[static_cast<size_t>(layer)];
}

void Session::raise_capacity(int64_t layer, int64_t capacity) {
  require_active("raise_capacity");
  require_layer("raise_capacity", layer);
  SPILLWAY_CHECK(capacity >= 0 && capacity % config_.alignment == 0, "raise_capacity: capacity is ",
                 capacity, " slots; allowed: a multiple of alignment = ", config_.alignment);
  SPILLWAY_CHECK(capacity <= most_capacity(config_), "raise_capacity: capacity is ", capacity,
                 " slots; allowed: at most ", most_capacity(config_));
  int64_t& current = capacities_[static_cast<size_t>(layer)];
  if (capacity <= current) return;
  current = capacity;
  buffers_->keep_only(capacities_);
}

Tensor Session::receive_buffer(const RoutingHandle& handle) {
  const int64_t capacity = handle.header.capacity;
  // Where a tensor [C,H] is given, its rows were compared with it.
  SPILLWAY_CHECK(capacity >= handle.num_slots() && capacity % config_.alignment == 0,
                 "the handle's capacity is ", capacity, ", its zones fill ", handle.num_slots(),
                 " slots; allowed: a multiple of alignment = ", config_.alignment,
                 " that holds them");
  const bool keep = capacity == capacities_[static_cast<size_t>(handle.header.layer)];
  return buffers_->take(ctx_, capacity, config_, keep);
}

}  // namespace spillway::ep
