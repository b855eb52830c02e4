#pragma once
// Products of strided matrices by raw pointers: what matmul, the experts' products and attention
// stand on.

#include <cstdint>

#include "spillway/runtime/context.h"
#include "spillway/tensor/dtype.h"

namespace spillway::kernels::cpu {

/// c[m,n] = op(a) op(b), plus the former c when `accumulate`; op(a) is [m,k], op(b) is [k,n].
/// `ld_`: elements from one stored row to the next (a is stored [k,m] when `trans_a`). a and b have
/// dtype `in`; c has that dtype, or f32 for bf16. Sums are fp32 (f64 for f64), rounded once: a bf16
/// c is added to before rounding. Nothing outside the matrices is read or written.
struct Gemm {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  DType in = DType::kF32;
  DType out = DType::kF32;

  /// The product of rows [begin, end) of c.
  Gemm rows(int64_t begin, int64_t end) const;
  /// The product of columns [begin, end) of c.
  Gemm columns(int64_t begin, int64_t end) const;
  /// The part of the sums over [begin, end) of k.
  Gemm depth(int64_t begin, int64_t end) const;
};

/// On all threads of the context; same bits for the same sizes and number of threads. Not for use
/// inside a parallel region.
void gemm(Context& ctx, const Gemm& g);

/// To be called before the `parallel_tasks` that uses `gemm_task`: makes the objects in the
/// context's cache that the tasks share, which only one thread may do.
void prepare_gemm_tasks(Context& ctx);

/// On the calling thread, inside `parallel_tasks`. The bits depend on the sizes only.
void gemm_task(Context& ctx, const Gemm& g);

/// Rows of c that one task takes: large enough to amortise the packing of b.
inline constexpr int64_t kGemmTaskRows = 256;

}  // namespace spillway::kernels::cpu
