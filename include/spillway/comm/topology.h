#pragma once
// world = ep x dp. An EP group is `ep` consecutive ranks that together hold one copy of all
// experts; the dp group of a rank joins the ranks of the same EP index.

#include <memory>

#include "spillway/comm/communicator.h"

namespace spillway::comm {

class Topology {
 public:
  /// Collective of `world`. Throws ConfigError naming `ep` and the world size when ep does not
  /// divide it. Keeps a reference to `world`, which must outlive it.
  Topology(Communicator& world, int ep);

  Communicator& world() const { return world_; }
  Communicator& ep_group() const { return *ep_group_; }
  Communicator& dp_group() const { return *dp_group_; }
  int ep() const { return ep_; }
  int dp() const { return world_.size() / ep_; }
  /// Index of this rank within its EP group.
  int ep_rank() const { return world_.rank() % ep_; }
  /// Index of this rank's EP group.
  int dp_rank() const { return world_.rank() / ep_; }
  /// A new communicator for this rank's EP group (collective of the world): what reconfiguring in
  /// mode `communicator` needs.
  std::unique_ptr<Communicator> make_ep_group() const;
  /// Replaces the EP group's communicator; returns the old one so that the caller decides when to
  /// destroy it.
  std::unique_ptr<Communicator> replace_ep_group(std::unique_ptr<Communicator> fresh);

 private:
  Communicator& world_;
  int ep_;
  std::unique_ptr<Communicator> ep_group_;
  std::unique_ptr<Communicator> dp_group_;
};

}  // namespace spillway::comm
