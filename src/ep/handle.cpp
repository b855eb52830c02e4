#include "spillway/ep/handle.h"

#include <cstring>
#include <numeric>

#include "spillway/core/rng.h"
#include "spillway/kernels/elementwise.h"

namespace spillway::ep {
namespace {

uint64_t hash_words(const uint64_t* words, size_t count, uint64_t seed) {
  // Each step is a bijection of the state for a given word, so one changed word always shows.
  uint64_t hash = seed;
  for (size_t i = 0; i < count; ++i) hash = mix64((hash ^ words[i]) + 0x9E3779B97F4A7C15ULL);
  return hash;
}

}  // namespace

uint64_t header_checksum(const HandleHeader& header) {
  constexpr size_t kWords = sizeof(HandleHeader) / sizeof(uint64_t) - 1;  // all but itself
  uint64_t words[kWords];
  std::memcpy(words, &header, sizeof(words));
  return hash_words(words, kWords, kWords);
}

uint64_t maps_checksum(const RoutingHandle& handle) {
  uint64_t hash = 1;
  for (const Tensor* map :
       {&handle.send_assignment, &handle.local_assignment, &handle.local_slot, &handle.row_of}) {
    const uint64_t words[] = {static_cast<uint64_t>(map->numel()), kernels::checksum(*map)};
    hash = hash_words(words, 2, hash);
  }
  if (handle.topk_idx.defined()) {
    const uint64_t words[] = {static_cast<uint64_t>(handle.topk_idx.numel()),
                              kernels::checksum(handle.topk_idx)};
    hash = hash_words(words, 2, hash);
  }
  for (const std::vector<int64_t>* counts :
       {&handle.send_counts, &handle.recv_counts, &handle.token_counts, &handle.slot_counts,
        &handle.zone_begin}) {
    hash = hash_words(reinterpret_cast<const uint64_t*>(counts->data()), counts->size(),
                      hash ^ counts->size());
  }
  return hash;
}

int64_t RoutingHandle::num_slots() const {
  return std::accumulate(slot_counts.begin(), slot_counts.end(), int64_t{0});
}

int64_t RoutingHandle::bytes() const {
  const size_t host_words = send_counts.size() + recv_counts.size() + token_counts.size() +
                            slot_counts.size() + zone_begin.size();
  return static_cast<int64_t>(sizeof(header) + host_words * sizeof(int64_t)) +
         send_assignment.bytes() + local_assignment.bytes() + local_slot.bytes() + row_of.bytes() +
         topk_idx.bytes();
}

}  // namespace spillway::ep
