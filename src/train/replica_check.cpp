#include "spillway/train/replica_check.h"

#include "spillway/kernels/elementwise.h"

namespace spillway::train {
namespace {

/// `first`, `stride`: world rank r * stride + first is rank r of the group.
void check_group(nn::ParameterStore& store, nn::SyncGroup group, comm::Communicator& ranks,
                 size_t first, size_t stride) {
  if (ranks.size() == 1) return;
  std::vector<const nn::Parameter*> checked;
  std::vector<uint64_t> mine;
  for (const nn::Parameter& parameter : store.all()) {
    if (parameter.spec.sync != group) continue;
    checked.push_back(&parameter);
    mine.push_back(kernels::checksum(parameter.value));
  }
  const size_t count = mine.size();
  std::vector<uint64_t> all(count * static_cast<size_t>(ranks.size()));
  ranks.all_gather(mine.data(), all.data(), static_cast<int64_t>(count * sizeof(uint64_t)));
  for (size_t i = 0; i < count; ++i) {
    for (size_t rank = 1; rank < static_cast<size_t>(ranks.size()); ++rank) {
      if (all[rank * count + i] == all[i]) continue;
      throw CommError(str("unequal replicas: parameter ", checked[i]->spec.name,
                          " differs between world ranks ", first, " and ", rank * stride + first));
    }
  }
}

}  // namespace

void check_replicas(nn::ParameterStore& store, comm::Topology& topology) {
  check_group(store, nn::SyncGroup::kDense, topology.world(), 0, 1);
  check_group(store, nn::SyncGroup::kExpert, topology.dp_group(),
              static_cast<size_t>(topology.ep_rank()), static_cast<size_t>(topology.ep()));
}

}  // namespace spillway::train
