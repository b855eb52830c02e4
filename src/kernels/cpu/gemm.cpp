#include "gemm.h"

#include <algorithm>
#include <cstring>

#include "convert.h"
#include "gemm_f64.h"
#include "onednn_matmul.h"
#include "scratch.h"
#include "spillway/core/math.h"
#include "tasks.h"

namespace spillway::kernels::cpu {
namespace {

// Measured with oneDNN 2.6 on AMX: primitives for exact shapes are up to twice as fast as ones with
// run-time dimensions, but take 0.6 ms to make. So sizes that change from step to step are cut into
// few distinct ones: blocks of 256 rows (512 of depth), then a multiple of 32, then what is left.
constexpr int64_t kBlockDepth = 512;
constexpr int64_t kTile = 32;

const void* advance(const void* data, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + elements * dtype_bytes(dtype);
}

void zero_result(const Gemm& g) {
  const int64_t width = g.n * dtype_bytes(g.out);
  auto* c = static_cast<std::byte*>(g.c);
  for (int64_t m = 0; m < g.m; ++m) {
    std::memset(c + m * g.ldc * dtype_bytes(g.out), 0, static_cast<size_t>(width));
  }
}

/// Copies a stored matrix [rows, cols] of bf16 to a dense one of f32.
void widen_matrix(const void* from, int64_t ld, int64_t rows, int64_t cols, float* to) {
  const auto* source = static_cast<const bf16*>(from);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) to[r * cols + i] = widen(source[r * ld + i]);
  }
}

/// For machines without bf16 arithmetic: the same product on widened copies.
void bf16_through_f32(Context& ctx, const Gemm& g) {
  const ScratchArray<float> a(ctx, g.m * g.k);
  const ScratchArray<float> b(ctx, g.k * g.n);
  Gemm f32 = g;
  f32.in = f32.out = DType::kF32;
  f32.a = a.data();
  f32.b = b.data();
  f32.lda = g.trans_a ? g.m : g.k;
  f32.ldb = g.trans_b ? g.k : g.n;
  widen_matrix(g.a, g.lda, g.trans_a ? g.k : g.m, f32.lda, a.data());
  widen_matrix(g.b, g.ldb, g.trans_b ? g.n : g.k, f32.ldb, b.data());
  if (g.out == DType::kF32) return onednn_sgemm(f32);
  const ScratchArray<float> c(ctx, g.m * g.n);
  f32.c = c.data();
  f32.ldc = g.n;
  if (g.accumulate) widen_matrix(g.c, g.ldc, g.m, g.n, c.data());
  onednn_sgemm(f32);
  auto* out = static_cast<bf16*>(g.c);
  for (int64_t m = 0; m < g.m; ++m) {
    for (int64_t n = 0; n < g.n; ++n) out[m * g.ldc + n] = bf16(c.data()[m * g.n + n]);
  }
}

/// Stored rows [0, rows) of bf16, followed by zero rows up to kTile.
void copy_padded(const void* from, int64_t ld, int64_t rows, int64_t cols, bf16* to) {
  const auto* source = static_cast<const bf16*>(from);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(source + r * ld, cols, to + r * cols);
  std::fill_n(to + rows * cols, (kTile - rows) * cols, bf16());
}

/// Weight gradients: the depth is a number of tokens. A tail below kTile is padded with zeros.
void bf16_by_depth(Context& ctx, OnednnBf16& onednn, const Gemm& g) {
  int64_t done = 0;
  while (g.k - done >= kTile) {
    const int64_t next = done + std::min(kBlockDepth, round_down(g.k - done, kTile));
    Gemm part = g.depth(done, next);
    part.accumulate = g.accumulate || done > 0;
    onednn.run(ctx, part);
    done = next;
  }
  if (done == g.k) return;
  Gemm tail = g.depth(done, g.k);
  const ScratchArray<bf16> a(ctx, kTile * g.m);
  const ScratchArray<bf16> b(ctx, kTile * g.n);
  copy_padded(tail.a, tail.lda, tail.k, g.m, a.data());
  copy_padded(tail.b, tail.ldb, tail.k, g.n, b.data());
  tail.a = a.data();
  tail.b = b.data();
  tail.lda = g.m;
  tail.ldb = g.n;
  tail.k = kTile;
  tail.accumulate = g.accumulate || done > 0;
  onednn.run(ctx, tail);
}

void bf16_by_rows(Context& ctx, OnednnBf16& onednn, const Gemm& g) {
  int64_t done = 0;
  while (done < g.m) {
    const int64_t left = g.m - done;
    const int64_t rows = left < 2 * kTile ? left : std::min(kGemmTaskRows, round_down(left, kTile));
    onednn.run(ctx, g.rows(done, done + rows));
    done += rows;
  }
}

void gemm_bf16(Context& ctx, const Gemm& g) {
  auto& onednn = ctx.cache<OnednnBf16>();
  if (!onednn.available()) {
    bf16_through_f32(ctx, g);
  } else if (g.trans_a && !g.trans_b && g.out == DType::kF32) {
    bf16_by_depth(ctx, onednn, g);
  } else {
    bf16_by_rows(ctx, onednn, g);
  }
}

}  // namespace

Gemm Gemm::rows(int64_t begin, int64_t end) const {
  Gemm part = *this;
  part.m = end - begin;
  part.a = advance(a, trans_a ? begin : begin * lda, in);
  part.c = const_cast<void*>(advance(c, begin * ldc, out));
  return part;
}

Gemm Gemm::columns(int64_t begin, int64_t end) const {
  Gemm part = *this;
  part.n = end - begin;
  part.b = advance(b, trans_b ? begin * ldb : begin, in);
  part.c = const_cast<void*>(advance(c, begin, out));
  return part;
}

Gemm Gemm::depth(int64_t begin, int64_t end) const {
  Gemm part = *this;
  part.k = end - begin;
  part.a = advance(a, trans_a ? begin * lda : begin, in);
  part.b = advance(b, trans_b ? begin : begin * ldb, in);
  return part;
}

void prepare_gemm_tasks(Context& ctx) {
  ctx.cache<OnednnBf16>().reserve_threads(ctx.num_threads());
}

void gemm_task(Context& ctx, const Gemm& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) {
    if (!g.accumulate) zero_result(g);
    return;
  }
  switch (g.in) {
    case DType::kF32:
      return onednn_sgemm(g);
    case DType::kF64:
      return gemm_f64(ctx, g);
    case DType::kBF16:
      return gemm_bf16(ctx, g);
    default:
      throw Error(str("gemm: dtype ", dtype_name(g.in), " is not one of f32, f64, bf16"));
  }
}

void gemm(Context& ctx, const Gemm& g) {
  if (g.m == 0 || g.n == 0) return;
  // sgemm splits over threads by itself, and better at small sizes.
  if (g.in == DType::kF32 && g.k > 0) return onednn_sgemm(g);
  prepare_gemm_tasks(ctx);
  const int64_t threads = ctx.num_threads();
  const int64_t rows = std::min(kGemmTaskRows, round_up(ceil_div(g.m, threads), kTile));
  const int64_t row_tasks = ceil_div(g.m, rows);
  const int64_t wanted = row_tasks >= threads ? 1 : ceil_div(threads, row_tasks);
  const int64_t columns = round_up(ceil_div(g.n, wanted), 2 * kTile);
  const int64_t column_tasks = ceil_div(g.n, columns);
  parallel_tasks(ctx, row_tasks * column_tasks, [&](int64_t task) {
    const int64_t m = task / column_tasks * rows;
    const int64_t n = task % column_tasks * columns;
    gemm_task(ctx, g.rows(m, std::min(g.m, m + rows)).columns(n, std::min(g.n, n + columns)));
  });
}

}  // namespace spillway::kernels::cpu
