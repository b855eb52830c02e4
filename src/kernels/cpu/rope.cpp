#include "rope.h"

#include <cmath>

#include "convert.h"
#include "parallel.h"

namespace spillway::kernels::cpu {

void rope_table(double theta, Tensor& cos, Tensor& sin) {
  const int64_t positions = cos.dim(0);
  const int64_t half = cos.dim(1);
  visit_float(cos.dtype(), [&]<typename T>() {
    T* pcos = cos.data<T>();
    T* psin = sin.data<T>();
    for (int64_t j = 0; j < half; ++j) {
      const double frequency = std::pow(theta, -static_cast<double>(j) / static_cast<double>(half));
      for (int64_t pos = 0; pos < positions; ++pos) {
        const double angle = static_cast<double>(pos) * frequency;
        pcos[pos * half + j] = convert<T>(std::cos(angle));
        psin[pos * half + j] = convert<T>(std::sin(angle));
      }
    }
  });
}

void rope(Context& ctx, const RopeArgs& args) {
  const int64_t seq = args.x.dim(1);
  const int64_t heads = args.x.dim(2);
  const int64_t dim = args.x.dim(3);
  const int64_t half = dim / 2;
  visit_float(args.x.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* x = args.x.data<T>();
    const A* cos = args.cos.data<A>();
    const A* sin = args.sin.data<A>();
    T* y = args.y.data<T>();
    const A sign = args.inverse ? A(-1) : A(1);
    parallel_rows(ctx, args.x.dim(0) * seq, heads * dim, [=](int64_t token) {
      const A* cos_row = cos + token % seq * half;
      const A* sin_row = sin + token % seq * half;
      for (int64_t h = 0; h < heads; ++h) {
        const T* first = x + (token * heads + h) * dim;
        const T* second = first + half;
        T* out_first = y + (token * heads + h) * dim;
        T* out_second = out_first + half;
#pragma omp simd
        for (int64_t j = 0; j < half; ++j) {
          const A c = round_to<T>(cos_row[j]);
          const A s = sign * round_to<T>(sin_row[j]);
          const A a = widen(first[j]);
          const A b = widen(second[j]);
          store(out_first[j], a * c - b * s);
          store(out_second[j], b * c + a * s);
        }
      }
    });
  });
}

}  // namespace spillway::kernels::cpu
