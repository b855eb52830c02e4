#include "fill.h"

#include <cstring>

#include "convert.h"
#include "parallel.h"
#include "spillway/core/rng.h"

namespace spillway::kernels::cpu {

void fill(Context& ctx, double value, Tensor& x) {
  visit_float(x.dtype(), [&]<typename T>() {
    const T element(static_cast<acc_t<T>>(value));
    T* const px = x.data<T>();
    parallel_elements(ctx, x.numel(), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) px[i] = element;
    });
  });
}

void fill_normal(Context& ctx, const FillNormalArgs& args) {
  const Rng rng(args.seed, args.stream);
  visit_float(args.x.dtype(), [&]<typename T>() {
    T* const px = args.x.data<T>();
    parallel_elements(ctx, args.x.numel(),
                      [=, first = args.first, std = args.std](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          const double draw = std * rng.normal_at(static_cast<uint64_t>(first + i));
                          px[i] = T(static_cast<acc_t<T>>(draw));
                        }
                      });
  });
}

void fill_unless_rounds_to(Context& ctx, const Tensor& rounded, Tensor& x) {
  visit_float(rounded.dtype(), [&]<typename T>() {
    const T* const pr = rounded.data<T>();
    float* const px = x.data<float>();
    parallel_elements(ctx, x.numel(), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T rounds_to(px[i]);
        if (std::memcmp(&rounds_to, &pr[i], sizeof(T)) != 0) px[i] = static_cast<float>(pr[i]);
      }
    });
  });
}

}  // namespace spillway::kernels::cpu
