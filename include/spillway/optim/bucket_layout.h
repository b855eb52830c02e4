#pragma once
// How the flat gradients and values of a sync group are cut into buckets, and which part of each
// bucket a rank owns. Gradient sync, norm and optimizer work on one layout.

#include <cstdint>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/nn/parameter.h"

namespace spillway::optim {

inline constexpr int64_t kDefaultBucketBytes = int64_t{4} << 20;

/// A run of whole parameters, `elements` long from element `begin` of flat_gradient(group).
struct Bucket {
  nn::SyncGroup group = nn::SyncGroup::kDense;
  int64_t begin = 0;
  int64_t elements = 0;
  int64_t num_parameters = 0;
  /// What this rank sums, keeps state of and updates, in elements of flat_gradient(group): all of
  /// the bucket, or, sharded, its chunk of it among the ranks of the group.
  comm::Chunk own;
};

struct BucketLayout {
  /// Dense buckets first, each group in the order of its parameters. Equal on every rank but for
  /// `own`.
  std::vector<Bucket> buckets;
  /// The bucket of each parameter, in the order of the store.
  std::vector<size_t> bucket_of;
  /// ZeRO-1 (Rajbhandari et al. 2020). Every bucket is split evenly over the ranks of its group,
  /// so that sums, updates and gathers are balanced however large single parameters are.
  bool sharded = false;
};

/// A parameter larger than `bucket_bytes` (of gradient) is a bucket of its own. Throws Error when
/// bucket_bytes < 1.
BucketLayout make_bucket_layout(const nn::ParameterStore& store, const comm::Topology& topology,
                                bool sharded, int64_t bucket_bytes = kDefaultBucketBytes);

/// The ranks that hold replicas of a sync group's parameters: the world, or the dp ranks.
comm::Communicator& group_of(const comm::Topology& topology, nn::SyncGroup group);

}  // namespace spillway::optim
