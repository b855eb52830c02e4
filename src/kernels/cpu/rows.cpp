#include "rows.h"

#include <cstring>

#include "convert.h"
#include "parallel.h"

namespace spillway::kernels::cpu {
namespace {

constexpr int64_t kNone = -1;

/// Each entry in [least, limit): a wrong one would read foreign memory.
void check_entries(const char* op, const char* name, const Tensor& index, int64_t least,
                   int64_t limit) {
  const int64_t* entries = index.data<int64_t>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    SPILLWAY_CHECK(entries[i] >= least && entries[i] < limit, op, ": ", name, " ", index.shape(),
                   " holds ", entries[i], " at position ", i, ", it must be in [", least, ", ",
                   limit, ")");
  }
}

/// Adds the rows of one token in k order.
template <typename T>
void sum_token(const int64_t* map, int64_t top_k, const T* remote, int64_t remote_rows,
               const T* local, int64_t hidden, T* out) {
  using A = acc_t<T>;
  constexpr int64_t kBlock = 256;  // sums kept in the first-level cache
  A sum[kBlock];
  for (int64_t first = 0; first < hidden; first += kBlock) {
    const int64_t n = std::min(kBlock, hidden - first);
    std::fill(sum, sum + n, A(0));
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t m = map[k];
      if (m == kNone) continue;
      const T* row = (m < remote_rows ? remote + m * hidden : local + (m - remote_rows) * hidden);
      row += first;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += widen(row[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) store(out[first + i], sum[i]);
  }
}

}  // namespace

void gather_rows(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out) {
  check_entries("gather_rows", "index", index, 0, x.dim(0));
  const int64_t row_bytes = x.dim(1) * dtype_bytes(x.dtype());
  const int64_t* from_row = index.data<int64_t>();
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  auto* to = static_cast<std::byte*>(out.raw_data());
  parallel_rows(ctx, index.numel(), x.dim(1), [=](int64_t i) {
    std::memcpy(to + i * row_bytes, from + from_row[i] * row_bytes, static_cast<size_t>(row_bytes));
  });
}

void gather_scalars(Context&, const Tensor& x, const Tensor& index, Tensor& out) {
  check_entries("gather_scalars", "index", index, 0, x.numel());
  const int64_t* entries = index.data<int64_t>();
  visit_float(x.dtype(), [&]<typename T>() {
    const T* from = x.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < index.numel(); ++i) to[i] = from[entries[i]];
  });
}

void sum_rows(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
              Tensor& out) {
  const int64_t remote_rows = remote.dim(0);
  check_entries("sum_rows", "map", map, kNone, remote_rows + local.dim(0));
  const int64_t top_k = map.dim(1);
  const int64_t hidden = out.dim(1);
  const int64_t* entries = map.data<int64_t>();
  visit_float(out.dtype(), [&]<typename T>() {
    const T* from_remote = remote.data<T>();
    const T* from_local = local.data<T>();
    T* to = out.data<T>();
    parallel_rows(ctx, out.dim(0), hidden * (top_k + 1), [=](int64_t t) {
      sum_token(entries + t * top_k, top_k, from_remote, remote_rows, from_local, hidden,
                to + t * hidden);
    });
  });
}

void pick_scalars(Context&, const Tensor& map, const Tensor& remote, const Tensor& local,
                  Tensor& out) {
  const int64_t remote_count = remote.numel();
  check_entries("pick_scalars", "map", map, kNone, remote_count + local.numel());
  const int64_t* entries = map.data<int64_t>();
  visit_float(out.dtype(), [&]<typename T>() {
    const T* from_remote = remote.data<T>();
    const T* from_local = local.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < map.numel(); ++i) {
      const int64_t m = entries[i];
      to[i] = m == kNone ? T{} : m < remote_count ? from_remote[m] : from_local[m - remote_count];
    }
  });
}

void zero_rows(Tensor& x, int64_t begin, int64_t end) {
  const int64_t row_bytes = x.bytes() / x.dim(0);
  std::memset(static_cast<std::byte*>(x.raw_data()) + begin * row_bytes, 0,
              static_cast<size_t>((end - begin) * row_bytes));
}

}  // namespace spillway::kernels::cpu
