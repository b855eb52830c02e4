#include "gemm_f64.h"

#include <algorithm>

#include "scratch.h"

namespace spillway::kernels::cpu {
namespace {

// A panel of b, kDepth x kColumns, stays in the second-level cache (256 KiB).
constexpr int64_t kDepth = 128;
constexpr int64_t kColumns = 256;
constexpr int64_t kRowsAtOnce = 4;

/// Copies b[k0:k0+depth, n0:n0+columns] into rows of kColumns.
void pack_b(const Gemm& g, int64_t k0, int64_t depth, int64_t n0, int64_t columns, double* panel) {
  const auto* b = static_cast<const double*>(g.b);
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t n = 0; n < columns; ++n) {
      panel[k * kColumns + n] =
          g.trans_b ? b[(n0 + n) * g.ldb + k0 + k] : b[(k0 + k) * g.ldb + n0 + n];
    }
  }
}

/// c[rows, columns] += a[rows, depth] panel, sums in ascending k.
template <int64_t kRows>
void multiply_rows(const double* a, int64_t row_stride, int64_t k_stride, const double* panel,
                   int64_t depth, int64_t columns, double* c, int64_t ldc) {
  for (int64_t k = 0; k < depth; ++k) {
    const double* b = panel + k * kColumns;
    double factor[kRows];
    for (int64_t r = 0; r < kRows; ++r) factor[r] = a[r * row_stride + k * k_stride];
#pragma omp simd
    for (int64_t n = 0; n < columns; ++n) {
      for (int64_t r = 0; r < kRows; ++r) c[r * ldc + n] += factor[r] * b[n];
    }
  }
}

}  // namespace

void gemm_f64(Context& ctx, const Gemm& g) {
  const auto* a = static_cast<const double*>(g.a);
  auto* c = static_cast<double*>(g.c);
  const int64_t row_stride = g.trans_a ? 1 : g.lda;
  const int64_t k_stride = g.trans_a ? g.lda : 1;
  if (!g.accumulate) {
    for (int64_t m = 0; m < g.m; ++m) std::fill_n(c + m * g.ldc, g.n, 0.0);
  }
  const ScratchArray<double> panel(ctx, kDepth * kColumns);
  for (int64_t n0 = 0; n0 < g.n; n0 += kColumns) {
    const int64_t columns = std::min(kColumns, g.n - n0);
    for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, g.k - k0);
      pack_b(g, k0, depth, n0, columns, panel.data());
      int64_t m = 0;
      for (; m + kRowsAtOnce <= g.m; m += kRowsAtOnce) {
        multiply_rows<kRowsAtOnce>(a + m * row_stride + k0 * k_stride, row_stride, k_stride,
                                   panel.data(), depth, columns, c + m * g.ldc + n0, g.ldc);
      }
      for (; m < g.m; ++m) {
        multiply_rows<1>(a + m * row_stride + k0 * k_stride, row_stride, k_stride, panel.data(),
                         depth, columns, c + m * g.ldc + n0, g.ldc);
      }
    }
  }
}

}  // namespace spillway::kernels::cpu
