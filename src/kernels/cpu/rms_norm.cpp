#include "rms_norm.h"

#include <cmath>

#include "convert.h"
#include "parallel.h"
#include "reduction_chunks.h"

namespace spillway::kernels::cpu {
namespace {

template <typename T>
acc_t<T> mean_square(const T* x, int64_t n) {
  acc_t<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += widen(x[i]) * widen(x[i]);
  return sum / static_cast<acc_t<T>>(n);
}

/// One row: dx, and dy * cast(x * inv) added to dw_row.
template <typename T>
void backward_row(const T* dy, const T* x, const T* w, acc_t<T> inv, int64_t n, T* dx,
                  acc_t<T>* dw_row) {
  using A = acc_t<T>;
  A dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; ++i) dot += widen(dy[i]) * widen(w[i]) * widen(x[i]);
  const A mean = dot * inv / static_cast<A>(n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A normed = widen(x[i]) * inv;
    const A grad = widen(dy[i]);
    dw_row[i] += grad * round_to<T>(normed);
    store(dx[i], inv * (grad * widen(w[i]) - normed * mean));
  }
}

}  // namespace

void rms_norm(Context& ctx, const Tensor& x, const Tensor& w, double eps, Tensor& y,
              Tensor& inv_rms) {
  const int64_t rows = x.shape().rows();
  const int64_t n = x.dim(-1);
  visit_float(x.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* px = x.data<T>();
    const T* pw = w.data<T>();
    T* py = y.data<T>();
    A* pinv = inv_rms.data<A>();
    parallel_rows(ctx, rows, n, [=](int64_t r) {
      const T* x_row = px + r * n;
      T* y_row = py + r * n;
      const A inv = A(1) / std::sqrt(mean_square(x_row, n) + static_cast<A>(eps));
      pinv[r] = inv;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        store(y_row[i], round_to<T>(widen(x_row[i]) * inv) * widen(pw[i]));
      }
    });
  });
}

void rms_norm_backward(Context& ctx, const RmsNormBackwardArgs& args, Tensor& partial) {
  const int64_t rows = args.x.shape().rows();
  const int64_t n = args.x.dim(-1);
  const ReductionChunks chunks = row_chunks(rows);
  visit_float(args.x.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* dy = args.dy.data<T>();
    const T* x = args.x.data<T>();
    const T* w = args.w.data<T>();
    const A* inv = args.inv_rms.data<A>();
    T* dx = args.dx.data<T>();
    A* dw = args.dw.data<A>();
    A* part = partial.data<A>();
    parallel_rows(ctx, chunks.count(), chunks.size * n, [=](int64_t c) {
      A* dw_chunk = part + c * n;
      std::fill(dw_chunk, dw_chunk + n, A(0));
      for (int64_t r = chunks.begin(c); r < chunks.end(c); ++r) {
        backward_row(dy + r * n, x + r * n, w, inv[r], n, dx + r * n, dw_chunk);
      }
    });
    for (int64_t c = 0; c < chunks.count(); ++c) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) dw[i] += part[c * n + i];
    }
  });
}

}  // namespace spillway::kernels::cpu
