#pragma once
// How tensors start.

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// Every element = value, rounded to x's dtype (any floating one).
void fill(Context& ctx, double value, Tensor& x);

/// x[i] = std * draw first + i of the normal stream Rng(seed, stream), computed in double, rounded
/// to the accumulator dtype and then to x's (any floating one). A pure function of the arguments:
/// parts of a tensor may be filled one by one, by any thread or rank.
struct FillNormalArgs {
  Tensor& x;
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t first = 0;
  double std = 1.0;
};
void fill_normal(Context& ctx, const FillNormalArgs& args);

/// Where x does not round to `rounded` bit for bit, x = rounded; elsewhere x stays. x f32, rounded
/// f32 or bf16, equal numbers of elements.
void fill_unless_rounds_to(Context& ctx, const Tensor& rounded, Tensor& x);

}  // namespace spillway::kernels
