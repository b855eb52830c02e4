#include "gemm_f64.h"

#include <algorithm>

#include "scratch.h"

namespace spillway::kernels::cpu {
namespace {

// A panel of b, kDepth x kColumns, stays in the second-level cache (256 KiB); a tile of c, 4 x 8,
// in registers.
constexpr int64_t kDepth = 128;
constexpr int64_t kColumns = 256;
constexpr int64_t kTileRows = 4;
constexpr int64_t kTileColumns = 8;

/// Copies b[k0:k0+depth, n0:n0+columns] into tiles [depth, kTileColumns], zeros past the columns.
void pack_b(const Gemm& g, int64_t k0, int64_t depth, int64_t n0, int64_t columns, double* panel) {
  const auto* b = static_cast<const double*>(g.b);
  for (int64_t tile = 0; tile < columns; tile += kTileColumns) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t i = 0; i < kTileColumns; ++i) {
        const int64_t n = n0 + tile + i;
        const bool inside = tile + i < columns;
        *panel++ = !inside ? 0.0 : g.trans_b ? b[n * g.ldb + k0 + k] : b[(k0 + k) * g.ldb + n];
      }
    }
  }
}

/// c[kRows, columns] += a[kRows, depth] b of one tile, sums in ascending k.
template <int64_t kRows>
void multiply_tile(const double* a, int64_t row_stride, int64_t k_stride, const double* b,
                   int64_t depth, int64_t columns, double* c, int64_t ldc) {
  double sums[kRows][kTileColumns] = {};
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t r = 0; r < kRows; ++r) {
      const double factor = a[r * row_stride + k * k_stride];
#pragma omp simd
      for (int64_t i = 0; i < kTileColumns; ++i) sums[r][i] += factor * b[k * kTileColumns + i];
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < columns; ++i) c[r * ldc + i] += sums[r][i];
  }
}

/// c[rows m0.., columns n0..] += a b for a packed panel of b.
void multiply_panel(const Gemm& g, int64_t k0, int64_t depth, int64_t n0, int64_t columns,
                    const double* panel) {
  const int64_t row_stride = g.trans_a ? 1 : g.lda;
  const int64_t k_stride = g.trans_a ? g.lda : 1;
  const double* a = static_cast<const double*>(g.a) + k0 * k_stride;
  double* c = static_cast<double*>(g.c) + n0;
  for (int64_t tile = 0; tile < columns; tile += kTileColumns) {
    const double* b = panel + tile * depth;
    const int64_t width = std::min(kTileColumns, columns - tile);
    int64_t m = 0;
    for (; m + kTileRows <= g.m; m += kTileRows) {
      multiply_tile<kTileRows>(a + m * row_stride, row_stride, k_stride, b, depth, width,
                               c + m * g.ldc + tile, g.ldc);
    }
    for (; m < g.m; ++m) {
      multiply_tile<1>(a + m * row_stride, row_stride, k_stride, b, depth, width,
                       c + m * g.ldc + tile, g.ldc);
    }
  }
}

}  // namespace

void gemm_f64(Context& ctx, const Gemm& g) {
  if (!g.accumulate) {
    auto* c = static_cast<double*>(g.c);
    for (int64_t m = 0; m < g.m; ++m) std::fill_n(c + m * g.ldc, g.n, 0.0);
  }
  const ScratchArray<double> panel(ctx, kDepth * kColumns);
  for (int64_t n0 = 0; n0 < g.n; n0 += kColumns) {
    const int64_t columns = std::min(kColumns, g.n - n0);
    for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, g.k - k0);
      pack_b(g, k0, depth, n0, columns, panel.data());
      multiply_panel(g, k0, depth, n0, columns, panel.data());
    }
  }
}

}  // namespace spillway::kernels::cpu
