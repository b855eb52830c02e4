#include "spillway/kernels/swiglu.h"

#include <gtest/gtest.h>

#include "support/gradient_check.h"
#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::gradient_matches;
using testing::Guarded;
using testing::random_tensor;
using testing::same_bytes;
using testing::throws_with;
using testing::tolerance;

double reference_silu(double x) { return x / (1.0 + std::exp(-x)); }
double reference_silu_slope(double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  return s + x * s * (1.0 - s);
}

struct SwigluCase {
  const char* name;
  int64_t rows;
  int64_t width;
  std::vector<int64_t> begin, sizes;
  DType dtype;
  bool scaled;
  RowGroups groups() const { return {begin, sizes}; }
  bool holds(int64_t row) const {
    for (size_t g = 0; g < begin.size(); ++g) {
      if (row >= begin[g] && row < begin[g] + sizes[g]) return true;
    }
    return false;
  }
};
std::string case_name(const ::testing::TestParamInfo<SwigluCase>& info) {
  return str(info.param.name, "_", dtype_name(info.param.dtype),
             info.param.scaled ? "_scaled" : "_plain");
}
void PrintTo(const SwigluCase& c, std::ostream* out) { *out << c.name; }

class Swiglu : public ::testing::TestWithParam<SwigluCase> {
 protected:
  static constexpr double kUntouched = 77.0;
  Swiglu() {
    if (GetParam().scaled) scale_ = random_tensor(ctx_, {GetParam().rows}, acc_, 2);
  }
  double scale(int64_t row) const { return scale_.defined() ? testing::element(scale_, row) : 1.0; }
  /// |got - want| within rounding of the dtype, or the fill value outside the groups.
  void expect(const Tensor& got, int64_t i, int64_t row, double want, DType dtype) {
    const double value = testing::element(got, i);
    if (!GetParam().holds(row)) {
      EXPECT_EQ(value, kUntouched) << "row " << row;
    } else {
      EXPECT_NEAR(value, want, tolerance(dtype) * (std::abs(want) + 0.1)) << "row " << row;
    }
  }
  void fill(Tensor& t) {
    for (int64_t i = 0; i < t.numel(); ++i) testing::set_element(t, i, kUntouched);
  }
  Context ctx_{Device::kCpu, 2};
  DType dtype_ = GetParam().dtype;
  DType acc_ = accumulator_dtype(GetParam().dtype);
  Tensor x_ = random_tensor(ctx_, {GetParam().rows, 2 * GetParam().width}, dtype_, 1, 3.0);
  Tensor dy_ = random_tensor(ctx_, {GetParam().rows, GetParam().width}, dtype_, 3);
  Tensor scale_;
};

TEST_P(Swiglu, ForwardOnTheGroupsRowsOnly) {
  const int64_t width = GetParam().width;
  Guarded y(ctx_, dy_.shape(), dtype_);
  fill(y.tensor);
  swiglu(ctx_, {.x = x_, .row_scale = scale_, .groups = GetParam().groups(), .y = y.tensor});
  for (int64_t r = 0; r < GetParam().rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = testing::element(x_, r * 2 * width + i);
      const double up = testing::element(x_, r * 2 * width + width + i);
      expect(y.tensor, r * width + i, r, reference_silu(gate) * up * scale(r), dtype_);
    }
  }
  EXPECT_TRUE(y.intact());
}

TEST_P(Swiglu, BackwardOnTheGroupsRowsOnly) {
  const int64_t width = GetParam().width;
  Guarded dx(ctx_, x_.shape(), dtype_);
  Guarded d_scale(ctx_, {GetParam().rows}, acc_);
  fill(dx.tensor);
  fill(d_scale.tensor);
  Tensor none;
  Tensor& d_row_scale = GetParam().scaled ? d_scale.tensor : none;
  swiglu_backward(ctx_, {.dy = dy_,
                         .x = x_,
                         .row_scale = scale_,
                         .groups = GetParam().groups(),
                         .dx = dx.tensor,
                         .d_row_scale = d_row_scale});
  for (int64_t r = 0; r < GetParam().rows; ++r) {
    double sum = 0.0, magnitude = 0.0;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * 2 * width + i;
      const double gate = testing::element(x_, at), up = testing::element(x_, at + width);
      const double grad = testing::element(dy_, r * width + i);
      sum += grad * reference_silu(gate) * up;
      magnitude += std::abs(grad * reference_silu(gate) * up);
      expect(dx.tensor, at, r, grad * scale(r) * up * reference_silu_slope(gate), dtype_);
      expect(dx.tensor, at + width, r, grad * scale(r) * reference_silu(gate), dtype_);
    }
    // A sum that cancels: the error is relative to its terms, not to what is left.
    if (GetParam().scaled && GetParam().holds(r)) {
      EXPECT_NEAR(testing::element(d_scale.tensor, r), sum, tolerance(acc_) / 4 * magnitude);
    }
  }
  EXPECT_TRUE(dx.intact() && d_scale.intact());
}

TEST_P(Swiglu, ThreadsDoNotChangeTheBits) {
  Context one;
  std::vector<Tensor> results;
  Tensor none;
  for (Context* ctx : {&one, &ctx_}) {
    Tensor y = Tensor::zeros(*ctx, dy_.shape(), dtype_);
    Tensor dx = Tensor::zeros(*ctx, x_.shape(), dtype_);
    Tensor d_scale = Tensor::zeros(*ctx, {GetParam().rows}, acc_);
    swiglu(*ctx, {.x = x_, .row_scale = scale_, .groups = GetParam().groups(), .y = y});
    swiglu_backward(*ctx, {.dy = dy_,
                           .x = x_,
                           .row_scale = scale_,
                           .groups = GetParam().groups(),
                           .dx = dx,
                           .d_row_scale = GetParam().scaled ? d_scale : none});
    results.insert(results.end(), {y, dx, d_scale});
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(results[i], results[i + 3])) << i;
}

std::vector<SwigluCase> cases() {
  std::vector<SwigluCase> all;
  for (const DType dtype : testing::float_dtypes()) {
    for (const bool scaled : {false, true}) {
      all.push_back({"no_rows", 0, 4, {}, {}, dtype, scaled});
      all.push_back({"one", 1, 1, {0}, {1}, dtype, scaled});
      all.push_back({"gaps", 13, 7, {0, 5, 5, 11}, {3, 0, 4, 1}, dtype, scaled});
      all.push_back({"aligned", 96, 128, {0, 32, 64}, {32, 32, 20}, dtype, scaled});
      all.push_back({"odd_large", 301, 129, {1, 150, 299}, {140, 148, 2}, dtype, scaled});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Grid, Swiglu, ::testing::ValuesIn(cases()), case_name);

TEST(SwigluGradient, MatchesCentralDifferences) {
  Context ctx;
  const Tensor x = random_tensor(ctx, {4, 6}, DType::kF64, 4);
  const Tensor dy = random_tensor(ctx, {4, 3}, DType::kF64, 5);
  const Tensor scale = random_tensor(ctx, {4}, DType::kF64, 6);
  const std::vector<int64_t> begin{0, 2}, sizes{1, 2};
  const RowGroups groups{begin, sizes};
  auto loss = [&](const Tensor& x_now, const Tensor& scale_now) {
    Tensor y = Tensor::zeros(ctx, {4, 3}, DType::kF64);
    swiglu(ctx, {.x = x_now, .row_scale = scale_now, .groups = groups, .y = y});
    return testing::dot(y, dy);
  };
  // Rows outside the groups keep the zero, which is their gradient.
  Tensor dx = Tensor::zeros(ctx, {4, 6}, DType::kF64);
  Tensor d_scale = Tensor::zeros(ctx, {4}, DType::kF64);
  swiglu_backward(
      ctx,
      {.dy = dy, .x = x, .row_scale = scale, .groups = groups, .dx = dx, .d_row_scale = d_scale});
  EXPECT_TRUE(gradient_matches([&](const Tensor& t) { return loss(t, scale); }, x, dx));
  EXPECT_TRUE(gradient_matches([&](const Tensor& t) { return loss(x, t); }, scale, d_scale));
}

TEST(SwigluForward, LargeGatesDoNotOverflow) {
  Context ctx;
  const Tensor x = testing::tensor_of<float>(ctx, {2, 2}, {-200.0f, 3.0f, 200.0f, 3.0f});
  const std::vector<int64_t> begin{0}, sizes{2};
  Tensor y = Tensor::empty(ctx, {2, 1}, DType::kF32), none;
  swiglu(ctx, {.x = x, .row_scale = none, .groups = {begin, sizes}, .y = y});
  EXPECT_EQ(y.data<float>()[0], 0.0f);
  EXPECT_EQ(y.data<float>()[1], 600.0f);
}

TEST(SwigluErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor x = Tensor::zeros(ctx, {4, 6}, DType::kF32), y = Tensor::zeros(ctx, {4, 3}, DType::kF32);
  Tensor odd = Tensor::zeros(ctx, {4, 5}, DType::kF32), none;
  Tensor scale = Tensor::zeros(ctx, {3}, DType::kF32);
  const std::vector<int64_t> begin{0, 2}, overlap{3, 1}, sizes{2, 3};
  const std::vector<int64_t> fits{2, 2};
  const RowGroups groups{begin, fits};
  EXPECT_TRUE(throws_with<Error>(
      [&] { swiglu(ctx, {.x = odd, .row_scale = none, .groups = groups, .y = y}); },
      {"swiglu: x has shape [4, 5]", "even"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { swiglu(ctx, {.x = x, .row_scale = scale, .groups = groups, .y = y}); },
      {"row_scale has shape [3]", "[4]"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        swiglu(ctx, {.x = x, .row_scale = none, .groups = {begin, sizes}, .y = y});
      },
      {"group 1", "[2, 5)", "4 rows"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        swiglu(ctx, {.x = x, .row_scale = none, .groups = {overlap, sizes}, .y = y});
      },
      {"group 0", "[3, 5)"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        swiglu_backward(
            ctx,
            {.dy = y, .x = x, .row_scale = none, .groups = groups, .dx = x, .d_row_scale = scale});
      },
      {"row_scale is undefined"}));
}

}  // namespace
}  // namespace spillway::kernels
