#pragma once
// AdamW over the parameters of a rank.

#include <cstdint>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/nn/parameter.h"
#include "spillway/optim/bucket_layout.h"
#include "spillway/optim/config.h"

namespace spillway::optim {

/// A run of elements of one parameter whose state this rank holds. The tensors share memory with
/// the optimizer, so a checkpoint writes them and restores into them (then `refresh_values`).
struct StatePiece {
  const nn::Parameter* parameter = nullptr;
  int64_t begin = 0, count = 0;  ///< elements within the parameter's local value
  /// f32 [count]. A f32 parameter is its own master: a slice of its value.
  Tensor master, m, v;
  /// True on exactly one rank of the world for each element: that rank writes it.
  bool primary = false;
};

/// Holds fp32 master weights and moments (Purpose::kOptimizer) of what this rank owns in the bucket
/// layout, packed bucket after bucket. A f32 parameter is its own master. The master of a bf16
/// parameter starts as the unrounded initial value, or as the value itself where that is no longer
/// the initial one (loaded weights), so value = bf16(master) at all times.
///
/// With `zero` (ZeRO-1, Rajbhandari et al. 2020; split by bucket as in Megatron-LM's distributed
/// optimizer) the state of a sync group is spread evenly over its ranks: a rank updates the slices
/// of the values that it owns and gathers the others, so 12 bytes a parameter for bf16, 8 for f32,
/// are divided by the size of the group. Values stay whole and equal on every rank.
class AdamW {
 public:
  /// Keeps references to `store` and `topology`, which must outlive it. Moments start at 0. Throws
  /// Error for f64 parameters: such models check gradients and are not trained.
  AdamW(Context& ctx, nn::ParameterStore& store, comm::Topology& topology,
        const OptimConfig& config, bool zero, int64_t bucket_bytes = kDefaultBucketBytes);
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// One update of all parameters from their summed gradients times `grad_scale` (kernels/adamw.h
  /// has the formula). `step` counts the updates from 1 (bias correction). Weight decay acts on
  /// parameters whose spec says so. Gradients stay as they are. With zero a collective of the world
  /// and the dp groups.
  void step(Context& ctx, double lr, double grad_scale, int64_t step);

  /// What GradientSync and the norm must work on, too.
  const BucketLayout& layout() const { return layout_; }
  /// What this rank holds, in the order of the store, at most one piece a parameter. Without zero:
  /// all of its local value.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  /// value = master, rounded to the parameters' dtype, on every rank: after pieces were written to.
  /// With zero a collective as `step` is.
  void refresh_values(Context& ctx);

  /// Bytes of the state, each bucket's rounded up to kGradientAlignment elements; a f32 model's
  /// masters are weights and count as such.
  int64_t bytes() const;

 private:
  struct FlatState {
    Tensor master;  // undefined for a f32 model
    Tensor m;
    Tensor v;
  };

  void allocate(Context& ctx, bool own_master);
  StatePiece make_piece(const nn::Parameter& parameter, size_t bucket, comm::Chunk run) const;
  /// Every rank's slices of the values to the ranks of their group.
  void gather_values(Context& ctx);

  nn::ParameterStore& store_;
  comm::Topology& topology_;
  OptimConfig config_;
  BucketLayout layout_;
  FlatState flat_;
  std::vector<int64_t> state_begin_;  // a bucket: its first element in flat_
  std::vector<StatePiece> pieces_;
};

}  // namespace spillway::optim
