#include "spillway/optim/gradient_sync.h"

#include <utility>

namespace spillway::optim {

GradientSync::GradientSync(nn::ParameterStore& store, comm::Topology& topology, BucketLayout layout)
    : store_(store), topology_(topology), layout_(std::move(layout)) {
  SPILLWAY_CHECK(layout_.bucket_of.size() == store.all().size(), "a bucket layout of ",
                 layout_.bucket_of.size(), " parameters for a store of ", store.all().size());
  for (size_t i = 0; i < store.all().size(); ++i) {
    places_[store.all()[i].spec.name] = {.bucket = layout_.bucket_of[i]};
  }
  reset();
}

GradientSync::GradientSync(nn::ParameterStore& store, comm::Topology& topology,
                           int64_t bucket_bytes)
    : GradientSync(store, topology, make_bucket_layout(store, topology, false, bucket_bytes)) {}

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
  for (size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
    if (!summed_[bucket]) sum_over_ranks(ctx, bucket);
  }
  reset();
}

void GradientSync::sum_over_ranks(Context& ctx, size_t bucket) {
  summed_[bucket] = true;
  const Bucket& b = layout_.buckets[bucket];
  comm::Communicator& ranks = group_of(topology_, b.group);
  if (ranks.size() == 1) return;
  Tensor slice = store_.flat_gradient(b.group).slice(b.begin, {b.elements});
  if (layout_.sharded) {
    ranks.reduce_scatter_sum(ctx, slice);
  } else {
    ranks.all_reduce_sum(ctx, slice);
  }
}

void GradientSync::reset() {
  last_micro_batch_ = false;
  waiting_for_.clear();
  for (const Bucket& bucket : layout_.buckets) waiting_for_.push_back(bucket.num_parameters);
  summed_.assign(layout_.buckets.size(), false);
  for (auto& [name, place] : places_) place.ready = false;
}

}  // namespace spillway::optim
