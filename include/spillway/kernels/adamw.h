#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// One AdamW step (Loshchilov, Hutter 2019) over n elements, decoupled decay:
///   g = grad_scale * grad; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
///   master -= lr * (m / bias1 / (sqrt(v / bias2) + eps) + decay * master)
/// with bias_i = 1 - b_i^step. master, m, v, grad f32; `weight` (bf16 or f32, may be undefined)
/// receives the rounded master.
struct AdamWArgs {
  Tensor& master;
  Tensor& m;
  Tensor& v;
  const Tensor& grad;
  Tensor& weight;
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double decay = 0.0;
  double grad_scale = 1.0;
  int64_t step = 1;
};
void adamw(Context& ctx, const AdamWArgs& args);

}  // namespace spillway::kernels
