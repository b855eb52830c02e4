#pragma once
// Sums gradients over ranks while backward still runs.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/autograd/tape.h"
#include "spillway/comm/topology.h"
#include "spillway/nn/parameter.h"
#include "spillway/optim/bucket_layout.h"

namespace spillway::optim {

/// Sums dense gradients over the world and expert gradients over the dp ranks of the same EP index:
/// never averaged, since every loss term carries its global denominator already.
///
/// In the last micro-batch of a step a bucket of the layout is summed as soon as backward has
/// walked the last use of all of its parameters. Tapes are equal on all ranks, so the sums (and the
/// transports of expert parallelism between them) are issued in one order everywhere. The result
/// does not depend on the buckets: each element is added over the ranks in rank order.
///
/// With a sharded layout every rank gets the sums of what it owns and nothing else: the rest of the
/// gradients is unspecified after `finish`, and nothing may read it before `zero_gradients`.
///
///   sync.attach(tape);
///   for each micro-batch { if (last) sync.begin_last_micro_batch(); forward; tape.backward(loss);
///   } sync.finish(ctx);
class GradientSync {
 public:
  /// Keeps references to `store` and `topology`, which must outlive it. `layout` is of the two;
  /// AdamW::layout() when there is an optimizer.
  GradientSync(nn::ParameterStore& store, comm::Topology& topology, BucketLayout layout);
  /// Whole sums, in buckets of `bucket_bytes`.
  GradientSync(nn::ParameterStore& store, comm::Topology& topology,
               int64_t bucket_bytes = kDefaultBucketBytes);
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  /// Takes the leaf hook of `tape`. This object must outlive the backward passes of the tape.
  void attach(autograd::Tape& tape);
  /// The next backward pass is the last that adds to the gradients in this step. Forgets what an
  /// earlier step that an error ended has left behind.
  void begin_last_micro_batch();
  /// No more is added to the gradient of `name` in this step. A collective (of the world or the dp
  /// group) when that completes a bucket. Does nothing before the last micro-batch and for leaves
  /// that are no parameters. Throws Error when told twice in one step: the bucket may be summed.
  void on_leaf_ready(Context& ctx, std::string_view name);
  /// Sums the buckets that are left (their parameters had no use, or there was no
  /// `begin_last_micro_batch`), then is ready for the next step. Collective.
  void finish(Context& ctx);

  const BucketLayout& layout() const { return layout_; }

 private:
  struct Place {
    size_t bucket = 0;
    bool ready = false;
  };
  void sum_over_ranks(Context& ctx, size_t bucket);
  void reset();

  nn::ParameterStore& store_;
  comm::Topology& topology_;
  BucketLayout layout_;
  std::map<std::string, Place, std::less<>> places_;
  std::vector<int64_t> waiting_for_;  // a bucket: parameters that are not ready
  std::vector<bool> summed_;          // a bucket
  bool last_micro_batch_ = false;
};

}  // namespace spillway::optim
