#include "embedding.h"

#include <cstring>

#include "convert.h"
#include "parallel.h"

namespace spillway::kernels::cpu {
namespace {

void check_ids(const char* op, const Tensor& tokens, int64_t vocab) {
  const int32_t* ids = tokens.data<int32_t>();
  for (int64_t r = 0; r < tokens.numel(); ++r) {
    if (ids[r] < 0 || ids[r] >= vocab) [[unlikely]] {
      throw DataError(str(op, ": token id ", ids[r], " at position ", r, " of tokens ",
                          tokens.shape(), " is outside [0, ", vocab, ")"));
    }
  }
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& w, Tensor& y) {
  check_ids("embedding", tokens, w.dim(0));
  const int32_t* ids = tokens.data<int32_t>();
  const int64_t row_bytes = w.dim(1) * dtype_bytes(w.dtype());
  const auto* from = static_cast<const std::byte*>(w.raw_data());
  auto* to = static_cast<std::byte*>(y.raw_data());
  parallel_rows(ctx, tokens.numel(), w.dim(1), [=](int64_t r) {
    std::memcpy(to + r * row_bytes, from + ids[r] * row_bytes, static_cast<size_t>(row_bytes));
  });
}

void embedding_backward(Context& ctx, const Tensor& dy, const Tensor& tokens, Tensor& dw) {
  check_ids("embedding_backward", tokens, dw.dim(0));
  const int64_t num_tokens = tokens.numel();
  const int64_t hidden = dw.dim(1);
  const int32_t* ids = tokens.data<int32_t>();
  // A thread owns whole blocks of columns (a cache line of floats each) and takes all rows in
  // order: no two threads touch one element, and each sum has one order.
  constexpr int64_t kColumns = 16;
  visit_float(dy.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* from = dy.data<T>();
    A* to = dw.data<A>();
    parallel_ranges(ctx, ceil_div(hidden, kColumns), num_tokens * kColumns,
                    [=](int64_t begin_block, int64_t end_block) {
                      const int64_t begin = begin_block * kColumns;
                      const int64_t end = std::min(hidden, end_block * kColumns);
                      for (int64_t r = 0; r < num_tokens; ++r) {
                        const T* grad = from + r * hidden;
                        A* sum = to + ids[r] * hidden;
#pragma omp simd
                        for (int64_t i = begin; i < end; ++i) sum[i] += widen(grad[i]);
                      }
                    });
  });
}

}  // namespace spillway::kernels::cpu
