#include "spillway/train/replica_check.h"

#include "spillway/kernels/elementwise.h"

namespace spillway::train {
namespace {

struct Checksum {
  const std::string* name;
  uint64_t value;
};

std::vector<Checksum> checksums(nn::ParameterStore& store, nn::SyncGroup group) {
  std::vector<Checksum> mine;
  for (const nn::Parameter& parameter : store.all()) {
    if (parameter.spec.sync != group) continue;
    mine.push_back({&parameter.spec.name, kernels::checksum(parameter.value)});
  }
  return mine;
}

/// `first`, `stride`: world rank r * stride + first is rank r of the group.
void compare(const std::vector<Checksum>& mine, comm::Communicator& ranks, size_t first,
             size_t stride) {
  if (ranks.size() == 1) return;
  const size_t count = mine.size();
  std::vector<uint64_t> sent;
  for (const Checksum& checksum : mine) sent.push_back(checksum.value);
  std::vector<uint64_t> all(count * static_cast<size_t>(ranks.size()));
  ranks.all_gather(sent.data(), all.data(), static_cast<int64_t>(count * sizeof(uint64_t)));
  for (size_t i = 0; i < count; ++i) {
    for (size_t rank = 1; rank < static_cast<size_t>(ranks.size()); ++rank) {
      if (all[rank * count + i] == all[i]) continue;
      throw CommError(str("unequal replicas: parameter ", *mine[i].name,
                          " differs between world ranks ", first, " and ", rank * stride + first));
    }
  }
}

}  // namespace

void check_replicas(nn::ParameterStore& store, comm::Topology& topology,
                    std::span<const moe::SelectionBias> biases) {
  std::vector<Checksum> everywhere = checksums(store, nn::SyncGroup::kDense);
  for (const moe::SelectionBias& bias : biases) {
    everywhere.push_back({&bias.name, kernels::checksum(bias.values)});
  }
  compare(everywhere, topology.world(), 0, 1);
  compare(checksums(store, nn::SyncGroup::kExpert), topology.dp_group(),
          static_cast<size_t>(topology.ep_rank()), static_cast<size_t>(topology.ep()));
}

}  // namespace spillway::train
