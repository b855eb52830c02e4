#pragma once
// An EP session of one rank, without MPI.

#include <memory>

#include "spillway/ep/session.h"
#include "spillway/plan/sizing.h"

namespace spillway::testing {

/// Bootstrapped. Without capacities in the config: one layer with room for any routing.
struct SelfSession {
  SelfSession(Context& ctx, ep::EpConfig config) : topology(*world, 1), session(ctx, topology) {
    if (config.recv_capacity_per_rank.empty()) {
      config.recv_capacity_per_rank = {worst_case(config)};
    }
    session.bootstrap(config);
  }
  static int64_t worst_case(const ep::EpConfig& config) {
    return plan::worst_case_slots(config.max_tokens_per_rank, config.top_k, config.num_experts,
                                  config.alignment);
  }

  std::unique_ptr<comm::Communicator> world = comm::make_self_communicator();
  comm::Topology topology;
  ep::Session session;
};

}  // namespace spillway::testing
