#include "spillway/optim/grad_norm.h"

#include <cmath>

#include "spillway/kernels/elementwise.h"

namespace spillway::optim {

double local_norm_squares(Context& ctx, nn::ParameterStore& store, nn::SyncGroup group) {
  const Tensor& gradient = store.flat_gradient(group);
  if (!gradient.defined() || gradient.numel() == 0) return 0.0;
  return kernels::sum_squares(ctx, gradient);
}

double norm_squares_contribution(Context& ctx, nn::ParameterStore& store,
                                 const comm::Topology& topology, const BucketLayout& layout) {
  double sum = 0.0;
  if (layout.sharded) {
    for (const Bucket& bucket : layout.buckets) {
      const Tensor& flat = store.flat_gradient(bucket.group);
      sum += kernels::sum_squares(ctx, flat.slice(bucket.own.begin, {bucket.own.count}));
    }
    return sum;
  }
  if (topology.world().rank() == 0) sum += local_norm_squares(ctx, store, nn::SyncGroup::kDense);
  if (topology.dp_rank() == 0) sum += local_norm_squares(ctx, store, nn::SyncGroup::kExpert);
  return sum;
}

double clip_scale(double norm, double clip) {
  SPILLWAY_CHECK(clip >= 0.0, "optim.clip ", clip, ": at least 0");
  if (clip == 0.0) return 1.0;
  SPILLWAY_CHECK(std::isfinite(norm) && norm >= 0.0, "gradient norm ", norm, " cannot be clipped");
  return norm > clip ? clip / norm : 1.0;
}

}  // namespace spillway::optim
