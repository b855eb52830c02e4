#include "spillway/train/matmul_timer.h"

#include <chrono>

#include "spillway/core/rng.h"
#include "spillway/kernels/elementwise.h"
#include "spillway/kernels/matmul.h"

namespace spillway::train {
namespace {

Tensor random_matrix(Context& ctx, int64_t rows, int64_t cols, DType dtype) {
  Tensor values = Tensor::empty(ctx, {rows, cols}, DType::kF32);
  const Rng rng(static_cast<uint64_t>(rows));
  float* data = values.data<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    data[i] = static_cast<float>(rng.uniform_at(static_cast<uint64_t>(i)) - 0.5);
  }
  Tensor result = Tensor::empty(ctx, values.shape(), dtype);
  kernels::cast(ctx, values, result);
  return result;
}

}  // namespace

std::vector<double> time_matmul(Context& ctx, int64_t m, int64_t n, int64_t k, DType dtype,
                                int64_t repeat) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kWarmup = 3;
  const Tensor a = random_matrix(ctx, m, k, dtype);
  const Tensor b = random_matrix(ctx, k, n, dtype);
  Tensor c = Tensor::empty(ctx, {m, n}, dtype);
  std::vector<double> ms;
  for (int64_t i = 0; i < kWarmup + repeat; ++i) {
    const Clock::time_point start = Clock::now();
    kernels::matmul(ctx, {.a = a, .b = b, .c = c});
    const std::chrono::duration<double, std::milli> taken = Clock::now() - start;
    if (i >= kWarmup) ms.push_back(taken.count());
  }
  return ms;
}

}  // namespace spillway::train
