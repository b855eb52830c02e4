#pragma once

#include "spillway/kernels/routing.h"

namespace spillway::kernels::cpu {

void route(Context& ctx, const RouteArgs& args);
void route_given(Context& ctx, const RouteArgs& args);
void route_backward(Context& ctx, const RouteBackwardArgs& args);
void count_experts(Context& ctx, const Tensor& topk_idx, Tensor& counts);
/// `partial`: f64 [chunks of `row_chunks`, E].
void column_sums(Context& ctx, const Tensor& probs, Tensor& sums, Tensor& partial);
/// `partial`: f64 [chunks of `row_chunks`].
double z_loss_sum(Context& ctx, const Tensor& logits, Tensor& partial);

}  // namespace spillway::kernels::cpu
