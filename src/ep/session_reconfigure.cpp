#include "agreement.h"
#include "buffers.h"
#include "stopwatch.h"

namespace spillway::ep {

ReconfigureCost Session::reconfigure(const EpConfig& config, ReconfigureMode mode) {
  require_active("reconfigure");
  Stopwatch watch;
  ReconfigureCost cost;
  // Whatever could refuse does so here: the session then goes on as it was.
  agree_on_no_live_handles(topology_.world(), live_handles());
  // The first thing that every rank must come to: what is waited for here is their work.
  cost.drain_ms = watch.lap_ms();
  agree_and_validate(config);
  cost.init_ms = watch.lap_ms();

  // Destroying a communicator is a collective too: in the same order on every rank, here, before
  // the next one is made.
  retired_.clear();
  topology_.world().barrier();
  cost.drain_ms += watch.lap_ms();

  finalize();
  cost.finalize_ms = watch.lap_ms();

  if (mode == ReconfigureMode::kCommunicator) {
    retired_.push_back(topology_.replace_ep_group(topology_.make_ep_group()));
  }
  start(config);
  cost.init_ms += watch.lap_ms();

  buffers_->reserve(ctx_, capacities_, config_);
  cost.alloc_ms = watch.lap_ms();
  return cost;
}

}  // namespace spillway::ep
