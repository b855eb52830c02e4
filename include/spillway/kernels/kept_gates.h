#pragma once
// Gates of a token that lost some of its experts, scaled back to the sum they had with all.

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// S_all[t] = sum of the gates of token t's assignments, S_kept[t] = of those that are kept, in k
/// order and the gates' dtype.
///
/// gate, out [T,K] f32 or f64 (may be one tensor); row_of i32 [T,K], -1 = not kept; topk_idx i32
/// [T,K], -1 = no assignment; undefined: everything that is not kept is none.
struct RenormalizeArgs {
  const Tensor& gate;
  const Tensor& row_of;
  const Tensor& topk_idx;
  Tensor& out;
};

/// out = gate * S_all / S_kept where kept; elsewhere, and in tokens with S_kept = 0, or so small
/// that the quotient is infinite, out = gate.
void renormalize_kept(Context& ctx, const RenormalizeArgs& args);

/// The gradient of that with S_all a constant. For kept pairs
///   d_gate[t,j] = S_all / S_kept * (d_out[t,j] - sum over kept k of d_out[t,k] gate[t,k] / S_kept)
/// (d_out in such tokens), exactly 0 for all others. d_out, d_gate [T,K], may be one tensor.
struct RenormalizeBackwardArgs {
  const Tensor& d_out;
  const Tensor& gate;
  const Tensor& row_of;
  const Tensor& topk_idx;
  Tensor& d_gate;
};
void renormalize_kept_backward(Context& ctx, const RenormalizeBackwardArgs& args);

}  // namespace spillway::kernels
