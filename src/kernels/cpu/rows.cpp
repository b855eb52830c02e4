#include "rows.h"

#include <cstring>

#include "convert.h"
#include "no_index.h"
#include "parallel.h"

namespace spillway::kernels::cpu {
namespace {

/// Each entry in [least, limit): a wrong one would read foreign memory.
void check_entries(const char* op, const char* name, const Tensor& index, int64_t least,
                   int64_t limit) {
  const int32_t* entries = index.data<int32_t>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    SPILLWAY_CHECK(entries[i] >= least && entries[i] < limit, op, ": ", name, " ", index.shape(),
                   " holds ", entries[i], " at position ", i, ", it must be in [", least, ", ",
                   limit, ")");
  }
}

/// out = the sum of N rows, in their order.
template <int N, typename T>
void add_rows(const T* const* rows, int64_t hidden, T* __restrict out) {
#pragma omp simd
  for (int64_t i = 0; i < hidden; ++i) {
    acc_t<T> sum(0);
    for (int n = 0; n < N; ++n) sum += widen(rows[n][i]);
    store(out[i], sum);
  }
}

/// What map[k] names; nullptr for nothing.
template <typename T>
const T* row_at(int64_t m, const T* remote, int64_t remote_rows, const T* local, int64_t hidden) {
  if (m == kNoRow) return nullptr;
  return m < remote_rows ? remote + m * hidden : local + (m - remote_rows) * hidden;
}

/// The sum of any number of rows: sums of a block stay in the first-level cache.
template <typename T>
void add_many_rows(const int32_t* map, int64_t top_k, const T* remote, int64_t remote_rows,
                   const T* local, int64_t hidden, T* out) {
  constexpr int64_t kBlock = 256;
  acc_t<T> sum[kBlock];
  for (int64_t first = 0; first < hidden; first += kBlock) {
    const int64_t n = std::min(kBlock, hidden - first);
    std::fill(sum, sum + n, acc_t<T>(0));
    for (int64_t k = 0; k < top_k; ++k) {
      const T* row = row_at(map[k], remote, remote_rows, local, hidden);
      if (row == nullptr) continue;
      row += first;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += widen(row[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) store(out[first + i], sum[i]);
  }
}

/// Adds the rows of one token in k order. Up to four of them in registers: only memory counts then.
template <typename T>
void sum_token(const int32_t* map, int64_t top_k, const T* remote, int64_t remote_rows,
               const T* local, int64_t hidden, T* out) {
  constexpr int kFew = 4;
  const T* rows[kFew] = {};
  int num_rows = 0;
  for (int64_t k = 0; k < top_k; ++k) {
    const T* row = row_at(map[k], remote, remote_rows, local, hidden);
    if (row == nullptr) continue;
    if (num_rows == kFew) {
      return add_many_rows(map, top_k, remote, remote_rows, local, hidden, out);
    }
    rows[num_rows++] = row;
  }
  switch (num_rows) {
    case 0:
      return add_rows<0>(rows, hidden, out);
    case 1:
      return add_rows<1>(rows, hidden, out);
    case 2:
      return add_rows<2>(rows, hidden, out);
    case 3:
      return add_rows<3>(rows, hidden, out);
    default:
      return add_rows<kFew>(rows, hidden, out);
  }
}

}  // namespace

void gather_rows(Context& ctx, const Tensor& x, const Tensor& index, Tensor& out) {
  check_entries("gather_rows", "index", index, 0, x.dim(0));
  const int64_t row_bytes = x.dim(1) * dtype_bytes(x.dtype());
  const int32_t* from_row = index.data<int32_t>();
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  auto* to = static_cast<std::byte*>(out.raw_data());
  parallel_rows(ctx, index.numel(), x.dim(1), [=](int64_t i) {
    std::memcpy(to + i * row_bytes, from + from_row[i] * row_bytes, static_cast<size_t>(row_bytes));
  });
}

void gather_scalars(Context&, const Tensor& x, const Tensor& index, Tensor& out) {
  check_entries("gather_scalars", "index", index, 0, x.numel());
  const int32_t* entries = index.data<int32_t>();
  visit_float(x.dtype(), [&]<typename T>() {
    const T* from = x.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < index.numel(); ++i) to[i] = from[entries[i]];
  });
}

void sum_rows(Context& ctx, const Tensor& map, const Tensor& remote, const Tensor& local,
              Tensor& out) {
  const int64_t remote_rows = remote.dim(0);
  check_entries("sum_rows", "map", map, kNoRow, remote_rows + local.dim(0));
  const int64_t top_k = map.dim(1);
  const int64_t hidden = out.dim(1);
  const int32_t* entries = map.data<int32_t>();
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
  check_entries("pick_scalars", "map", map, kNoRow, remote_count + local.numel());
  const int32_t* entries = map.data<int32_t>();
  visit_float(out.dtype(), [&]<typename T>() {
    const T* from_remote = remote.data<T>();
    const T* from_local = local.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < map.numel(); ++i) {
      const int64_t m = entries[i];
      to[i] = m == kNoRow ? T{} : m < remote_count ? from_remote[m] : from_local[m - remote_count];
    }
  });
}

void zero_rows(Tensor& x, int64_t begin, int64_t end) {
  const int64_t row_bytes = x.bytes() / x.dim(0);
  std::memset(static_cast<std::byte*>(x.raw_data()) + begin * row_bytes, 0,
              static_cast<size_t>((end - begin) * row_bytes));
}

}  // namespace spillway::kernels::cpu
