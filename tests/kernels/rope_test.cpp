#include "spillway/kernels/rope.h"

#include <gtest/gtest.h>

#include "support/gradient_check.h"
#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::Guarded;
using testing::random_tensor;
using testing::same_bytes;
using testing::throws_with;
using testing::tolerance;

constexpr double kTheta = 10000.0;

struct RopeCase {
  int64_t batch, seq, heads, dim;
  DType dtype;
};
std::string case_name(const ::testing::TestParamInfo<RopeCase>& info) {
  const RopeCase& c = info.param;
  return str("b", c.batch, "_s", c.seq, "_h", c.heads, "_d", c.dim, "_", dtype_name(c.dtype));
}
void PrintTo(const RopeCase& c, std::ostream* out) { *out << "seq" << c.seq << "_dim" << c.dim; }

class Rope : public ::testing::TestWithParam<RopeCase> {
 protected:
  Rope() { rope_table(kTheta, cos_, sin_); }
  Shape shape() const {
    return {GetParam().batch, GetParam().seq, GetParam().heads, GetParam().dim};
  }
  Context ctx_{Device::kCpu, 2};
  DType dtype_ = GetParam().dtype;
  // Longer than the sequence, as a table made once is.
  Tensor cos_ = Tensor::empty(ctx_, {GetParam().seq + 3, GetParam().dim / 2},
                              accumulator_dtype(GetParam().dtype));
  Tensor sin_ = cos_.clone(ctx_);
  Tensor x_ = random_tensor(ctx_, shape(), GetParam().dtype, 1);
};

TEST_P(Rope, RotatesPairs) {
  const auto [batch, seq, heads, dim, dtype] = GetParam();
  Guarded y(ctx_, shape(), dtype);
  rope(ctx_, {.x = x_, .cos = cos_, .sin = sin_, .y = y.tensor});
  std::vector<double> wanted(static_cast<size_t>(x_.numel()));
  for (int64_t i = 0; i < x_.numel(); ++i) {
    const int64_t j = i % dim, half = dim / 2, pair = j % half;
    const int64_t pos = i / dim / heads % seq;
    const double angle =
        static_cast<double>(pos) *
        std::pow(kTheta, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
    const double self = testing::element(x_, i);
    const double other = testing::element(x_, j < half ? i + half : i - half);
    wanted[static_cast<size_t>(i)] =
        self * std::cos(angle) + (j < half ? -other : other) * std::sin(angle);
  }
  // Two terms of size 1, cos and sin rounded as well.
  EXPECT_TRUE(all_near(y.tensor, wanted, tolerance(dtype), 2.0));
  EXPECT_TRUE(y.intact());
}

TEST_P(Rope, InPlaceAndThreadsGiveTheSameBits) {
  Context one;
  Tensor y = Tensor::empty(ctx_, shape(), dtype_);
  rope(ctx_, {.x = x_, .cos = cos_, .sin = sin_, .y = y});
  Tensor in_place = x_.clone(ctx_);
  rope(one, {.x = in_place, .cos = cos_, .sin = sin_, .y = in_place});
  EXPECT_TRUE(same_bytes(y, in_place));
}

TEST_P(Rope, InverseRotatesBack) {
  Tensor y = Tensor::empty(ctx_, shape(), dtype_);
  rope(ctx_, {.x = x_, .cos = cos_, .sin = sin_, .y = y});
  rope(ctx_, {.x = y, .cos = cos_, .sin = sin_, .y = y, .inverse = true});
  EXPECT_TRUE(all_near(y, testing::to_doubles(x_), 2 * tolerance(dtype_), 2.0));
}

std::vector<RopeCase> cases() {
  std::vector<RopeCase> all;
  for (const DType dtype : testing::float_dtypes()) {
    all.push_back({0, 4, 2, 8, dtype});
    all.push_back({1, 1, 1, 2, dtype});
    all.push_back({2, 5, 3, 6, dtype});
    all.push_back({2, 64, 4, 64, dtype});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Grid, Rope, ::testing::ValuesIn(cases()), case_name);

TEST(RopeGradient, InverseIsTheGradient) {
  Context ctx;
  const Shape shape{2, 3, 2, 4};
  const Tensor x = random_tensor(ctx, shape, DType::kF64, 2);
  const Tensor dy = random_tensor(ctx, shape, DType::kF64, 3);
  Tensor cos = Tensor::empty(ctx, {3, 2}, DType::kF64), sin = cos.clone(ctx);
  rope_table(kTheta, cos, sin);
  Tensor dx = Tensor::empty(ctx, shape, DType::kF64);
  rope(ctx, {.x = dy, .cos = cos, .sin = sin, .y = dx, .inverse = true});
  EXPECT_TRUE(testing::gradient_matches(
      [&](const Tensor& t) {
        Tensor y = Tensor::empty(ctx, shape, DType::kF64);
        rope(ctx, {.x = t, .cos = cos, .sin = sin, .y = y});
        return testing::dot(y, dy);
      },
      x, dx));
}

TEST(RopeErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor x = Tensor::zeros(ctx, {1, 4, 2, 8}, DType::kF32);
  Tensor cos = Tensor::zeros(ctx, {3, 4}, DType::kF32), sin = cos.clone(ctx);
  Tensor wide = Tensor::zeros(ctx, {4, 8}, DType::kF32);
  Tensor ids = Tensor::zeros(ctx, {4, 4}, DType::kI32);
  EXPECT_TRUE(throws_with<Error>([&] { rope(ctx, {.x = x, .cos = cos, .sin = sin, .y = x}); },
                                 {"cos has shape [3, 4]", "[1, 4, 2, 8]"}));
  EXPECT_TRUE(throws_with<Error>([&] { rope(ctx, {.x = x, .cos = wide, .sin = wide, .y = x}); },
                                 {"cos has shape [4, 8]"}));
  EXPECT_TRUE(throws_with<Error>([&] { rope_table(kTheta, ids, sin); }, {"cos is i32"}));
  EXPECT_TRUE(throws_with<Error>([&] { rope_table(0.0, cos, sin); }, {"theta is 0"}));
}

}  // namespace
}  // namespace spillway::kernels
