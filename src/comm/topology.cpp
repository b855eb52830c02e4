#include "spillway/comm/topology.h"

#include <utility>

namespace spillway::comm {

Topology::Topology(Communicator& world, int ep) : world_(world), ep_(ep) {
  if (ep < 1 || world.size() % ep != 0) {
    throw ConfigError(str("ep is ", ep, "; allowed: a divisor of the world size ", world.size()));
  }
  ep_group_ = make_ep_group();
  dp_group_ = world_.split(ep_rank(), dp_rank());
}

std::unique_ptr<Communicator> Topology::make_ep_group() const {
  return world_.split(dp_rank(), ep_rank());
}

std::unique_ptr<Communicator> Topology::replace_ep_group(std::unique_ptr<Communicator> fresh) {
  SPILLWAY_CHECK(fresh != nullptr, "the new EP group is null");
  SPILLWAY_CHECK(fresh->size() == ep_ && fresh->rank() == ep_rank(), "the new EP group has ",
                 fresh->size(), " ranks and this one is ", fresh->rank(),
                 " of them; allowed: ", ep_, " ranks, this one ", ep_rank());
  return std::exchange(ep_group_, std::move(fresh));
}

}  // namespace spillway::comm
