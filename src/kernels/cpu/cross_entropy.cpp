#include "cross_entropy.h"

#include "parallel.h"
#include "softmax_rows.h"

namespace spillway::kernels::cpu {
namespace {

constexpr int32_t kIgnored = -1;

void check_targets(const char* op, const Tensor& targets, int64_t vocab) {
  const int32_t* ids = targets.data<int32_t>();
  for (int64_t r = 0; r < targets.numel(); ++r) {
    if (ids[r] < kIgnored || ids[r] >= vocab) [[unlikely]] {
      throw DataError(str(op, ": target ", ids[r], " at position ", r, " of targets ",
                          targets.shape(), " is outside [0, ", vocab, ") and not -1 (ignored)"));
    }
  }
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor& loss,
                   Tensor& lse) {
  const int64_t vocab = logits.dim(-1);
  check_targets("cross_entropy", targets, vocab);
  const int32_t* ids = targets.data<int32_t>();
  visit_float(logits.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* x = logits.data<T>();
    A* ploss = loss.data<A>();
    A* plse = lse.data<A>();
    parallel_rows(ctx, targets.numel(), 4 * vocab, [=](int64_t r) {
      const T* row = x + r * vocab;
      const double row_lse = log_sum_exp(row, vocab);
      plse[r] = static_cast<A>(row_lse);
      ploss[r] = ids[r] == kIgnored
                     ? A(0)
                     : static_cast<A>(row_lse - static_cast<double>(widen(row[ids[r]])));
    });
  });
}

void cross_entropy_backward(Context& ctx, const CrossEntropyBackwardArgs& args) {
  const int64_t vocab = args.logits.dim(-1);
  check_targets("cross_entropy_backward", args.targets, vocab);
  const int32_t* ids = args.targets.data<int32_t>();
  visit_float(args.logits.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* x = args.logits.data<T>();
    const A* lse = args.lse.data<A>();
    T* dx = args.dlogits.data<T>();
    const A scale = static_cast<A>(args.scale);
    parallel_rows(ctx, args.targets.numel(), 4 * vocab, [=](int64_t r) {
      const T* row = x + r * vocab;
      T* out = dx + r * vocab;
      if (ids[r] == kIgnored) {
        std::fill(out, out + vocab, T{});
        return;
      }
      const A shift = lse[r];
      // Read before the loop: dlogits may be logits.
      const A p_target = fast_exp(widen(row[ids[r]]) - shift);
#pragma omp simd
      for (int64_t v = 0; v < vocab; ++v) {
        store(out[v], scale * fast_exp(widen(row[v]) - shift));
      }
      out[ids[r]] = static_cast<T>(scale * (p_target - A(1)));
    });
  });
}

}  // namespace spillway::kernels::cpu
