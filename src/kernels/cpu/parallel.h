#pragma once
// Loops over the threads of a rank. Bodies must not throw.

#include <algorithm>
#include <cstdint>

#include "spillway/core/math.h"
#include "spillway/runtime/context.h"

namespace spillway::kernels::cpu {

/// Work (in elements) below which another thread costs more than it saves.
inline constexpr int64_t kElementsPerThread = 16384;

/// One compiled copy of a body. Inlined into the serial and the parallel branch, the two copies of
/// a sum could add in different orders, and its bits would depend on the number of threads.
template <typename Body>
[[gnu::noinline, gnu::noclone]] void run_range(const Body& body, int64_t begin, int64_t end) {
  body(begin, end);
}

/// Calls body(begin, end) for contiguous shares of [0, n), one a thread; `cost`: elements an item
/// stands for.
template <typename Body>
void parallel_ranges(Context& ctx, int64_t n, int64_t cost, const Body& body) {
  const int64_t worthwhile = ceil_div(n * std::max<int64_t>(cost, 1), kElementsPerThread);
  const int64_t threads = std::min({static_cast<int64_t>(ctx.num_threads()), worthwhile, n});
  if (threads <= 1) {
    if (n > 0) run_range(body, int64_t{0}, n);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(static, 1)
  for (int64_t t = 0; t < threads; ++t) {
    run_range(body, n * t / threads, n * (t + 1) / threads);
  }
}

/// Calls body(i) for each i in [0, n).
template <typename Body>
void parallel_rows(Context& ctx, int64_t n, int64_t cost, const Body& body) {
  parallel_ranges(ctx, n, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

/// Shares of a flat array, begun at multiples of 1024: vector body and scalar tail then cover the
/// same elements whatever the number of threads.
template <typename Body>
void parallel_elements(Context& ctx, int64_t n, const Body& body) {
  constexpr int64_t kBlock = 1024;
  parallel_ranges(ctx, ceil_div(n, kBlock), kBlock, [&](int64_t begin, int64_t end) {
    body(begin * kBlock, std::min(n, end * kBlock));
  });
}

}  // namespace spillway::kernels::cpu
