#pragma once
// Moving rows between tokens and slots. Indices i32; -1 = none.

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// out[i,:] = x[index[i],:]. index [N] >= 0, x [T,H], out's first N rows.
void gather_rows(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out);

/// out[i] = x.flat[index[i]] for scalars: gates of assignments. x of any shape, out [>= N].
void gather_scalars(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out);

/// out[t,:] = sum over k, in k order and fp32 (f64), of row(map[t,k]). map i32 [T,K]: -1 = nothing,
/// m < remote rows: that row of `remote`, else row m - (remote rows) of `local`. A token without
/// rows gets zeros. remote [R,H] (R may be 0), local [C,H], out [T,H].
void sum_rows(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
              Tensor& out);

/// out[t,k] = the scalar that map[t,k] names, in the same two-buffer numbering; 0 for -1.
void pick_scalars(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
                  Tensor& out);

/// Zeroes rows [begin, end) of x.
void zero_rows(Tensor& x, int64_t begin, int64_t end);

}  // namespace spillway::kernels
