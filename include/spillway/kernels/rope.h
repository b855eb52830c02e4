#pragma once

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// cos and sin [S, D/2] of pos * theta^(-2j/D), accumulator dtype of `cos` (f32 or f64).
void rope_table(double theta, Tensor& cos, Tensor& sin);

/// Rotary embedding (Su et al. 2021), half rotation: element j of a head pairs with j + D/2.
/// x, y [B,S,heads,D]; cos, sin [>= S, D/2], rounded to the dtype of x before use as transformers
/// does. `inverse` rotates back: the gradient. y may be x.
struct RopeArgs {
  const Tensor& x;
  const Tensor& cos;
  const Tensor& sin;
  Tensor& y;
  bool inverse = false;
};
void rope(Context& ctx, const RopeArgs& args);

}  // namespace spillway::kernels
