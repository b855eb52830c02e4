#include "elementwise.h"

#include <cstring>
#include <type_traits>

#include "convert.h"
#include "parallel.h"
#include "reduction_chunks.h"
#include "spillway/core/rng.h"

namespace spillway::kernels::cpu {

void add(Context& ctx, const Tensor& a, const Tensor& b, Tensor& out) {
  visit_float(a.dtype(), [&]<typename T>() {
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    T* po = out.data<T>();
    parallel_elements(ctx, a.numel(), [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(po[i], widen(pa[i]) + widen(pb[i]));
    });
  });
}

void add_into(Context& ctx, const Tensor& x, Tensor& acc) {
  visit_float(acc.dtype(), [&]<typename A>() {
    visit_float(x.dtype(), [&]<typename T>() {
      using Sum = std::common_type_t<acc_t<A>, acc_t<T>>;
      const T* px = x.data<T>();
      A* pa = acc.data<A>();
      parallel_elements(ctx, x.numel(), [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const Sum sum = static_cast<Sum>(widen(pa[i])) + static_cast<Sum>(widen(px[i]));
          store(pa[i], static_cast<acc_t<A>>(sum));
        }
      });
    });
  });
}

void scale_in_place(Context& ctx, double factor, Tensor& x) {
  visit_float(x.dtype(), [&]<typename T>() {
    const auto f = static_cast<acc_t<T>>(factor);
    T* px = x.data<T>();
    parallel_elements(ctx, x.numel(), [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(px[i], widen(px[i]) * f);
    });
  });
}

void cast(Context& ctx, const Tensor& from, Tensor& to) {
  visit_float(from.dtype(), [&]<typename From>() {
    visit_float(to.dtype(), [&]<typename To>() {
      const From* pf = from.data<From>();
      To* pt = to.data<To>();
      parallel_elements(ctx, from.numel(), [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) store(pt[i], static_cast<acc_t<To>>(widen(pf[i])));
      });
    });
  });
}

double sum_squares(Context& ctx, const Tensor& x, Tensor& partial) {
  const ReductionChunks chunks = element_chunks(x.numel());
  double* sums = partial.data<double>();
  visit_float(x.dtype(), [&]<typename T>() {
    const T* px = x.data<T>();
    parallel_rows(ctx, chunks.count(), chunks.size, [=](int64_t c) {
      // Sixteen sums side by side: one alone would wait for its own addition each time.
      constexpr int64_t kLanes = 16;
      double lanes[kLanes] = {};
      const int64_t end = chunks.end(c);
      int64_t i = chunks.begin(c);
      for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const auto value = static_cast<double>(widen(px[i + lane]));
          lanes[lane] += value * value;
        }
      }
      double sum = 0.0;
      for (const double lane : lanes) sum += lane;
      for (; i < end; ++i)
        sum += static_cast<double>(widen(px[i])) * static_cast<double>(widen(px[i]));
      sums[c] = sum;
    });
  });
  double total = 0.0;
  for (int64_t c = 0; c < chunks.count(); ++c) total += sums[c];
  return total;
}

uint64_t checksum(const Tensor& x) {
  // A sum of hashes of (word, position): any device can add them in any order.
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  const auto* bytes = static_cast<const unsigned char*>(x.raw_data());
  const int64_t num_bytes = x.bytes();
  const int64_t num_words = num_bytes / 8;
  uint64_t sum = mix64(static_cast<uint64_t>(num_bytes) + kGolden);
  for (int64_t i = 0; i < num_words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, 8);
    sum += mix64(mix64(word) + kGolden * static_cast<uint64_t>(i + 1));
  }
  const int64_t rest = num_bytes - 8 * num_words;
  if (rest > 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * num_words, static_cast<size_t>(rest));
    sum += mix64(mix64(word) + kGolden * static_cast<uint64_t>(num_words + 1));
  }
  return sum;
}

}  // namespace spillway::kernels::cpu
