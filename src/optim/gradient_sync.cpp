#include "spillway/optim/gradient_sync.h"

namespace spillway::optim {

GradientSync::GradientSync(nn::ParameterStore& store, comm::Topology& topology,
                           int64_t bucket_bytes)
    : store_(store), topology_(topology) {
  SPILLWAY_CHECK(bucket_bytes >= 1, "gradient buckets of ", bucket_bytes, " bytes: at least 1");
  make_buckets(nn::SyncGroup::kDense, bucket_bytes);
  make_buckets(nn::SyncGroup::kExpert, bucket_bytes);
  reset();
}

void GradientSync::make_buckets(nn::SyncGroup group, int64_t bucket_bytes) {
  const size_t first_of_group = buckets_.size();
  for (const nn::Parameter& parameter : store_.all()) {
    if (parameter.spec.sync != group) continue;
    const int64_t begin = parameter.gradient_offset;
    const int64_t end = begin + parameter.gradient.numel();
    const int64_t element_bytes = dtype_bytes(parameter.gradient.dtype());
    const bool fits = buckets_.size() > first_of_group &&
                      (end - buckets_.back().begin) * element_bytes <= bucket_bytes;
    if (!fits) buckets_.push_back({.group = group, .begin = begin});
    Bucket& bucket = buckets_.back();
    // Gaps between parameters are zero on every rank and cost less than a call of their own.
    bucket.elements = end - bucket.begin;
    ++bucket.num_parameters;
    places_[parameter.spec.name] = {.bucket = buckets_.size() - 1};
  }
}

void GradientSync::attach(autograd::Tape& tape) {
  tape.on_leaf_ready(
      [this, &ctx = tape.ctx()](const std::string& leaf) { on_leaf_ready(ctx, leaf); });
}

void GradientSync::begin_last_micro_batch() {
  reset();
  last_micro_batch_ = true;
}

void GradientSync::on_leaf_ready(Context& ctx, std::string_view name) {
  if (!last_micro_batch_) return;
  const auto it = places_.find(name);
  if (it == places_.end()) return;
  Place& place = it->second;
  SPILLWAY_CHECK(!place.ready, "the gradient of ", name,
                 " is ready for the second time: one backward pass after begin_last_micro_batch");
  place.ready = true;
  if (--waiting_for_[place.bucket] == 0) sum_over_ranks(ctx, place.bucket);
}

void GradientSync::finish(Context& ctx) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!summed_[bucket]) sum_over_ranks(ctx, bucket);
  }
  reset();
}

void GradientSync::sum_over_ranks(Context& ctx, size_t bucket) {
  summed_[bucket] = true;
  const Bucket& b = buckets_[bucket];
  comm::Communicator& group =
      b.group == nn::SyncGroup::kDense ? topology_.world() : topology_.dp_group();
  if (group.size() == 1) return;
  Tensor slice = store_.flat_gradient(b.group).slice(b.begin, {b.elements});
  group.all_reduce_sum(ctx, slice);
}

void GradientSync::reset() {
  last_micro_batch_ = false;
  waiting_for_.clear();
  for (const Bucket& bucket : buckets_) waiting_for_.push_back(bucket.num_parameters);
  summed_.assign(buckets_.size(), false);
  for (auto& [name, place] : places_) place.ready = false;
}

}  // namespace spillway::optim
