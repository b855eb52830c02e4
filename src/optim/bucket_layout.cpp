#include "spillway/optim/bucket_layout.h"

namespace spillway::optim {
namespace {

void add_group(const nn::ParameterStore& store, nn::SyncGroup group, int64_t bucket_bytes,
               BucketLayout& layout) {
  std::vector<Bucket>& buckets = layout.buckets;
  const size_t first_of_group = buckets.size();
  for (size_t i = 0; i < store.all().size(); ++i) {
    const nn::Parameter& parameter = store.all()[i];
    if (parameter.spec.sync != group) continue;
    const int64_t begin = parameter.gradient_offset;
    const int64_t end = begin + parameter.gradient.numel();
    const int64_t element_bytes = dtype_bytes(parameter.gradient.dtype());
    const bool fits = buckets.size() > first_of_group &&
                      (end - buckets.back().begin) * element_bytes <= bucket_bytes;
    if (!fits) buckets.push_back({.group = group, .begin = begin});
    Bucket& bucket = buckets.back();
    // Gaps between parameters are zero on every rank and cost less than a call of their own.
    bucket.elements = end - bucket.begin;
    ++bucket.num_parameters;
    layout.bucket_of[i] = buckets.size() - 1;
  }
}

}  // namespace

BucketLayout make_bucket_layout(const nn::ParameterStore& store, const comm::Topology& topology,
                                bool sharded, int64_t bucket_bytes) {
  SPILLWAY_CHECK(bucket_bytes >= 1, "gradient buckets of ", bucket_bytes, " bytes: at least 1");
  BucketLayout layout{.buckets = {}, .bucket_of = {}, .sharded = sharded};
  layout.bucket_of.resize(store.all().size());
  add_group(store, nn::SyncGroup::kDense, bucket_bytes, layout);
  add_group(store, nn::SyncGroup::kExpert, bucket_bytes, layout);
  for (Bucket& bucket : layout.buckets) {
    bucket.own = {bucket.begin, bucket.elements};
    if (!sharded) continue;
    const comm::Communicator& ranks = group_of(topology, bucket.group);
    const comm::Chunk chunk = comm::chunk_of(ranks.rank(), ranks.size(), bucket.elements);
    bucket.own = {bucket.begin + chunk.begin, chunk.count};
  }
  return layout;
}

comm::Communicator& group_of(const comm::Topology& topology, nn::SyncGroup group) {
  return group == nn::SyncGroup::kDense ? topology.world() : topology.dp_group();
}

}  // namespace spillway::optim
