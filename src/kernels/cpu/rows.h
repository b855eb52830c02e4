#pragma once

#include "spillway/kernels/rows.h"

namespace spillway::kernels::cpu {

void gather_rows(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out);
void gather_scalars(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out);
void sum_rows(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
              Tensor& out);
void pick_scalars(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
                  Tensor& out);
void zero_rows(Tensor& x, int64_t begin, int64_t end);

}  // namespace spillway::kernels::cpu
