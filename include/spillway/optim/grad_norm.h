#pragma once
// The norm of the whole model's gradient, and clipping. All of it is about gradients that have been
// summed over ranks (GradientSync::finish).

#include "spillway/comm/topology.h"
#include "spillway/nn/parameter.h"
#include "spillway/optim/bucket_layout.h"

namespace spillway::optim {

/// Sum of squares over this rank's gradients of one sync group, in f64 and in an order that depends
/// on neither threads nor ranks. 0 for a group without parameters. With f32 gradients it is not
/// finite exactly when one of them is not.
double local_norm_squares(Context& ctx, nn::ParameterStore& store, nn::SyncGroup group);

/// What this rank adds to norm^2. Summed over the world it counts every element of the model once:
/// dense parameters on rank 0 and the experts of one full EP group on the ranks of the first group,
/// or, with a sharded layout, each shard on its owner (the only rank that has its sum). So a value
/// that is not finite is seen wherever it is. No collective: the sum travels in the step's world
/// message. The order of the additions follows the layout, so sharded and whole norms are equal to
/// rounding in f64.
double norm_squares_contribution(Context& ctx, nn::ParameterStore& store,
                                 const comm::Topology& topology, const BucketLayout& layout);

/// Factor on gradients: min(1, clip / norm), exactly; no epsilon is added to the norm, so a clipped
/// gradient has the norm `clip` to rounding. 1 when clip is 0 (no clipping) or norm is 0. Throws
/// Error when clip < 0, or when clip > 0 and norm is not finite: such a step must not be taken.
double clip_scale(double norm, double clip);

}  // namespace spillway::optim
