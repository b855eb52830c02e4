#include "spillway/kernels/rms_norm.h"

#include <gtest/gtest.h>

#include "support/gradient_check.h"
#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::gradient_matches;
using testing::Guarded;
using testing::matrix_case_name;
using testing::matrix_cases;
using testing::MatrixCase;
using testing::random_tensor;
using testing::rounded;
using testing::same_bytes;
using testing::throws_with;
using testing::to_doubles;
using testing::tolerance;

constexpr double kEps = 1e-5;

struct Reference {
  std::vector<double> y, inv_rms, dx, dw;
};

/// Forward and backward in double; the normed value is rounded where the contract says so.
Reference reference(const Tensor& x, const Tensor& w, const Tensor& dy) {
  const int64_t rows = x.dim(0), cols = x.dim(1);
  Reference ref{.y = to_doubles(x), .dx = to_doubles(x)};
  ref.dw.assign(static_cast<size_t>(cols), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0.0;
    for (int64_t i = 0; i < cols; ++i) squares += std::pow(testing::element(x, r * cols + i), 2);
    const double inv = 1.0 / std::sqrt(squares / static_cast<double>(cols) + kEps);
    ref.inv_rms.push_back(inv);
    double mean = 0.0;
    for (int64_t i = 0; i < cols; ++i) {
      const double normed = testing::element(x, r * cols + i) * inv;
      mean += testing::element(dy, r * cols + i) * testing::element(w, i) * normed;
    }
    mean /= static_cast<double>(cols);
    for (int64_t i = 0; i < cols; ++i) {
      const auto at = static_cast<size_t>(r * cols + i);
      const double normed = testing::element(x, r * cols + i) * inv;
      const double grad = testing::element(dy, r * cols + i);
      ref.y[at] = rounded(normed, x.dtype()) * testing::element(w, i);
      ref.dx[at] = inv * (grad * testing::element(w, i) - normed * mean);
      ref.dw[static_cast<size_t>(i)] += grad * rounded(normed, x.dtype());
    }
  }
  return ref;
}

class RmsNorm : public ::testing::TestWithParam<MatrixCase> {
 protected:
  Context ctx_{Device::kCpu, 2};
  DType dtype_ = GetParam().dtype;
  DType acc_ = accumulator_dtype(GetParam().dtype);
  Tensor x_ = random_tensor(ctx_, {GetParam().rows, GetParam().cols}, dtype_, 1, 2.0);
  Tensor w_ = random_tensor(ctx_, {GetParam().cols}, dtype_, 2);
  Tensor dy_ = random_tensor(ctx_, {GetParam().rows, GetParam().cols}, dtype_, 3);
};

TEST_P(RmsNorm, Forward) {
  Guarded y(ctx_, x_.shape(), dtype_);
  Guarded inv(ctx_, {GetParam().rows}, acc_);
  rms_norm(ctx_, x_, w_, kEps, y.tensor, inv.tensor);
  const Reference ref = reference(x_, w_, dy_);
  // Twice: the normed value may round the other way than the reference's.
  EXPECT_TRUE(all_near(y.tensor, ref.y, 2 * tolerance(dtype_)));
  EXPECT_TRUE(all_near(inv.tensor, ref.inv_rms, tolerance(acc_)));
  EXPECT_TRUE(y.intact() && inv.intact());
}

TEST_P(RmsNorm, Backward) {
  Tensor y = Tensor::empty(ctx_, x_.shape(), dtype_);
  Tensor inv = Tensor::empty(ctx_, {GetParam().rows}, acc_);
  rms_norm(ctx_, x_, w_, kEps, y, inv);
  Guarded dx(ctx_, x_.shape(), dtype_);
  Guarded dw(ctx_, w_.shape(), acc_);
  copy(random_tensor(ctx_, w_.shape(), acc_, 4), dw.tensor);
  Reference ref = reference(x_, w_, dy_);
  for (int64_t i = 0; i < w_.numel(); ++i) {
    ref.dw[static_cast<size_t>(i)] += testing::element(dw.tensor, i);
  }
  rms_norm_backward(
      ctx_, {.dy = dy_, .x = x_, .w = w_, .inv_rms = inv, .dx = dx.tensor, .dw = dw.tensor});
  EXPECT_TRUE(all_near(dx.tensor, ref.dx, 2 * tolerance(dtype_), 0.1));
  // Terms of size 1 that cancel over the rows; where one rounds the other way, by 2^-8.
  EXPECT_TRUE(all_near(dw.tensor, ref.dw, tolerance(dtype_), 4.0));
  EXPECT_TRUE(dx.intact() && dw.intact());
}

TEST_P(RmsNorm, ThreadsDoNotChangeTheBits) {
  Context one;
  std::vector<Tensor> results;
  for (Context* ctx : {&one, &ctx_}) {
    Tensor y = Tensor::empty(*ctx, x_.shape(), dtype_);
    Tensor inv = Tensor::empty(*ctx, {GetParam().rows}, acc_);
    Tensor dx = Tensor::empty(*ctx, x_.shape(), dtype_);
    Tensor dw = Tensor::zeros(*ctx, w_.shape(), acc_);
    rms_norm(*ctx, x_, w_, kEps, y, inv);
    rms_norm_backward(*ctx, {.dy = dy_, .x = x_, .w = w_, .inv_rms = inv, .dx = dx, .dw = dw});
    results.insert(results.end(), {y, inv, dx, dw});
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bytes(results[i], results[i + 4])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Grid, RmsNorm,
    ::testing::ValuesIn(matrix_cases({{0, 8}, {1, 1}, {1, 64}, {3, 7}, {64, 128}, {150, 333}})),
    matrix_case_name);

TEST(RmsNormGradient, MatchesCentralDifferences) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {3, 5}, DType::kF64, 5);
  const Tensor w = random_tensor(ctx, {5}, DType::kF64, 6);
  const Tensor dy = random_tensor(ctx, {3, 5}, DType::kF64, 7);
  Tensor inv = Tensor::empty(ctx, {3}, DType::kF64);
  auto loss = [&](const Tensor& x_now, const Tensor& w_now) {
    Tensor y = Tensor::empty(ctx, {3, 5}, DType::kF64);
    rms_norm(ctx, x_now, w_now, kEps, y, inv);
    return testing::dot(y, dy);
  };
  loss(x, w);
  Tensor dx = Tensor::empty(ctx, {3, 5}, DType::kF64);
  Tensor dw = Tensor::zeros(ctx, {5}, DType::kF64);
  rms_norm_backward(ctx, {.dy = dy, .x = x, .w = w, .inv_rms = inv, .dx = dx, .dw = dw});
  EXPECT_TRUE(gradient_matches([&](const Tensor& t) { return loss(t, w); }, x, dx));
  EXPECT_TRUE(gradient_matches([&](const Tensor& t) { return loss(x, t); }, w, dw));
}

TEST(RmsNormForward, HigherRanksAreRows) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {2, 3, 8}, DType::kF32, 8);
  const Tensor w = random_tensor(ctx, {8}, DType::kF32, 9);
  Tensor y = Tensor::empty(ctx, {2, 3, 8}, DType::kF32), y2 = Tensor::empty(ctx, {6, 8}, x.dtype());
  Tensor inv = Tensor::empty(ctx, {2, 3}, DType::kF32);
  rms_norm(ctx, x, w, kEps, y, inv);
  rms_norm(ctx, x.view({6, 8}), w, kEps, y2, inv);
  EXPECT_TRUE(same_bytes(y, y2));
}

TEST(RmsNormForward, DoesNotDependOnAlignment) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {3, 67}, DType::kF32, 10);
  const Tensor w = random_tensor(ctx, {67}, DType::kF32, 11);
  Tensor inv = Tensor::empty(ctx, {3}, DType::kF32);
  Tensor wanted = Tensor::empty(ctx, x.shape(), DType::kF32);
  rms_norm(ctx, x, w, kEps, wanted, inv);
  const Tensor buffer = Tensor::empty(ctx, {300}, DType::kF32);
  for (int64_t offset = 1; offset < 9; ++offset) {
    Tensor moved = buffer.slice(offset, x.shape());
    copy(x, moved);
    Tensor y = Tensor::empty(ctx, x.shape(), DType::kF32);
    rms_norm(ctx, moved, w, kEps, y, inv);
    EXPECT_TRUE(same_bytes(y, wanted)) << offset;
  }
}

TEST(RmsNormErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor x = Tensor::zeros(ctx, {2, 4}, DType::kBF16), y = x.clone(ctx);
  Tensor w = Tensor::zeros(ctx, {4}, DType::kBF16), short_w = Tensor::zeros(ctx, {3}, x.dtype());
  Tensor inv = Tensor::zeros(ctx, {2}, DType::kF32), bad_inv = Tensor::zeros(ctx, {2}, x.dtype());
  EXPECT_TRUE(throws_with<Error>([&] { rms_norm(ctx, x, short_w, kEps, y, inv); },
                                 {"rms_norm: w has shape [3]", "[4]"}));
  EXPECT_TRUE(throws_with<Error>([&] { rms_norm(ctx, x, w, kEps, y, bad_inv); },
                                 {"inv_rms is bf16", "f32"}));
  EXPECT_TRUE(throws_with<Error>([&] { rms_norm(ctx, x, w, -1.0, y, inv); }, {"eps is -1"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { rms_norm_backward(ctx, {.dy = y, .x = x, .w = w, .inv_rms = inv, .dx = y, .dw = w}); },
      {"rms_norm_backward: dw is bf16", "f32"}));
}

}  // namespace
}  // namespace spillway::kernels
