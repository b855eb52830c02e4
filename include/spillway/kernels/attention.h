#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// Causal grouped-query attention. q [B,S,Hq,D], k and v [B,S,Hk,D], out [B,S,Hq,D], one dtype
/// (f32, f64, bf16); Hq is a multiple of Hk and query head h reads kv head h / (Hq / Hk).
/// out = softmax(scale * q k^T, keys <= query) v, softmax in fp32 (f64 for f64).
/// lse [B,Hq,S], accumulator dtype: log-sum-exp of the scaled scores, for backward.
struct AttentionArgs {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  Tensor& out;
  Tensor& lse;
  double scale = 1.0;
};
void attention(Context& ctx, const AttentionArgs& args);

/// Gradients of `attention`; scores are computed again from q, k and lse. dq, dk, dv have the
/// shapes and dtype of q, k, v and are overwritten.
struct AttentionBackwardArgs {
  const Tensor& dout;
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& out;
  const Tensor& lse;
  Tensor& dq;
  Tensor& dk;
  Tensor& dv;
  double scale = 1.0;
};
void attention_backward(Context& ctx, const AttentionBackwardArgs& args);

struct AttentionSizes {
  int64_t batch = 0;     ///< B
  int64_t length = 0;    ///< S
  int64_t heads = 0;     ///< Hq
  int64_t kv_heads = 0;  ///< Hk
  int64_t head_dim = 0;  ///< D
};
/// Bytes of workspace that all threads together hold at most during one call.
int64_t attention_workspace_bytes(const AttentionSizes& sizes, DType dtype, int64_t threads);
int64_t attention_backward_workspace_bytes(const AttentionSizes& sizes, DType dtype,
                                           int64_t threads);

}  // namespace spillway::kernels
