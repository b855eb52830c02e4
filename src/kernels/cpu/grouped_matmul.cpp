#include "grouped_matmul.h"

#include <algorithm>

#include "gemm.h"
#include "spillway/core/math.h"
#include "tasks.h"

namespace spillway::kernels::cpu {
namespace {

const void* at(const Tensor& tensor, int64_t element) {
  return static_cast<const std::byte*>(tensor.raw_data()) + element * dtype_bytes(tensor.dtype());
}
void* at(Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.raw_data()) + element * dtype_bytes(tensor.dtype());
}

int64_t num_blocks(int64_t rows) { return ceil_div(rows, kGemmTaskRows); }

/// The product of `out`'s rows of each group with the weight of the group, a task a row block.
/// Blocks start at the group's first row, so neither capacity nor other groups move them.
void multiply_rows(Context& ctx, const Tensor& in, const Tensor& w, RowGroups groups, bool trans_w,
                   Tensor& out) {
  int64_t num_tasks = 0;
  for (const int64_t rows : groups.rows) num_tasks += num_blocks(rows);
  Gemm form;
  form.n = out.dim(1);
  form.k = in.dim(1);
  form.lda = form.k;
  form.ldb = w.dim(2);
  form.ldc = form.n;
  form.trans_b = trans_w;
  form.in = in.dtype();
  form.out = out.dtype();
  prepare_gemm_tasks(ctx);
  parallel_tasks(ctx, num_tasks, [&](int64_t task) {
    size_t g = 0;
    for (; task >= num_blocks(groups.rows[g]); ++g) task -= num_blocks(groups.rows[g]);
    const int64_t first = task * kGemmTaskRows;
    const int64_t row = groups.begin[g] + first;
    Gemm product = form;
    product.m = std::min(kGemmTaskRows, groups.rows[g] - first);
    product.a = at(in, row * form.k);
    product.b = at(w, static_cast<int64_t>(g) * w.dim(1) * w.dim(2));
    product.c = at(out, row * form.n);
    gemm_task(ctx, product);
  });
}

}  // namespace

void grouped_matmul(Context& ctx, const Tensor& x, const Tensor& w, RowGroups groups, Tensor& y) {
  multiply_rows(ctx, x, w, groups, /*trans_w=*/true, y);
}

void grouped_matmul_dgrad(Context& ctx, const Tensor& dy, const Tensor& w, RowGroups groups,
                          Tensor& dx) {
  multiply_rows(ctx, dy, w, groups, /*trans_w=*/false, dx);
}

void grouped_matmul_wgrad(Context& ctx, const Tensor& dy, const Tensor& x, RowGroups groups,
                          Tensor& dw) {
  const int64_t rows_dw = dw.dim(1);
  const int64_t blocks = num_blocks(rows_dw);
  Gemm form;
  form.n = dw.dim(2);
  form.lda = rows_dw;
  form.ldb = form.n;
  form.ldc = form.n;
  form.trans_a = true;
  form.accumulate = true;
  form.in = x.dtype();
  form.out = dw.dtype();
  prepare_gemm_tasks(ctx);
  parallel_tasks(ctx, groups.size() * blocks, [&](int64_t task) {
    const auto g = static_cast<size_t>(task / blocks);
    const int64_t first = task % blocks * kGemmTaskRows;
    Gemm product = form;
    product.m = rows_dw;
    product.k = groups.rows[g];
    product.a = at(dy, groups.begin[g] * rows_dw);
    product.b = at(x, groups.begin[g] * form.n);
    product.c = at(dw, static_cast<int64_t>(g) * rows_dw * form.n);
    gemm_task(ctx, product.rows(first, std::min(rows_dw, first + kGemmTaskRows)));
  });
}

}  // namespace spillway::kernels::cpu
