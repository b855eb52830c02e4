#include "spillway/kernels/fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::element;
using testing::Guarded;
using testing::matrix_case_name;
using testing::matrix_cases;
using testing::MatrixCase;
using testing::rounded;
using testing::same_bytes;
using testing::throws_with;

class Fill : public ::testing::TestWithParam<MatrixCase> {
 protected:
  Shape shape() const { return {GetParam().rows, GetParam().cols}; }
  Context ctx_{Device::kCpu, 2};
};

TEST_P(Fill, WithAValue) {
  Guarded x(ctx_, shape(), GetParam().dtype);
  fill(ctx_, 0.1, x.tensor);
  for (int64_t i = 0; i < x.tensor.numel(); ++i) {
    ASSERT_EQ(element(x.tensor, i), rounded(0.1, GetParam().dtype)) << i;
  }
  EXPECT_TRUE(x.intact());
}

TEST_P(Fill, WithDrawsOfTheStream) {
  constexpr uint64_t kSeed = 3, kStream = 9;
  constexpr int64_t kFirst = 5'000'000'000;  // beyond 32 bits
  Guarded x(ctx_, shape(), GetParam().dtype);
  fill_normal(ctx_,
              {.x = x.tensor, .seed = kSeed, .stream = kStream, .first = kFirst, .std = 0.02});
  const Rng rng(kSeed, kStream);
  for (int64_t i = 0; i < x.tensor.numel(); ++i) {
    const double draw = 0.02 * rng.normal_at(static_cast<uint64_t>(kFirst + i));
    ASSERT_EQ(element(x.tensor, i), rounded(draw, GetParam().dtype)) << i;
  }
  EXPECT_TRUE(x.intact());
}

INSTANTIATE_TEST_SUITE_P(
    Grid, Fill, ::testing::ValuesIn(matrix_cases({{0, 3}, {1, 1}, {3, 7}, {64, 64}, {257, 129}})),
    matrix_case_name);

TEST(FillNormal, DoesNotDependOnThreadsOrOnTheWayItIsCut) {
  constexpr int64_t kElements = 70'001;  // several threads' worth, no multiple of a block
  Context one(Device::kCpu, 1), many(Device::kCpu, 3);
  Tensor serial = Tensor::empty(one, {kElements}, DType::kF32);
  fill_normal(one, {.x = serial, .seed = 1, .stream = 2});
  Tensor parallel = Tensor::empty(many, {kElements}, DType::kF32);
  fill_normal(many, {.x = parallel, .seed = 1, .stream = 2});
  EXPECT_TRUE(same_bytes(serial, parallel));
  constexpr int64_t kCut = 12'345;
  Tensor parts = Tensor::empty(one, {kElements}, DType::kF32);
  Tensor head = parts.slice(0, {kCut}), tail = parts.slice(kCut, {kElements - kCut});
  fill_normal(many, {.x = tail, .seed = 1, .stream = 2, .first = kCut});
  fill_normal(one, {.x = head, .seed = 1, .stream = 2});
  EXPECT_TRUE(same_bytes(serial, parts));
}

TEST(FillUnlessRoundsTo, KeepsWhatRoundsToTheValue) {
  Context ctx;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    float x, value, wanted;
  };
  // 1 + 2^-10 rounds to 1 in bf16, 1 + 2^-7 does not.
  const std::vector<Row> rows{{1.0009765625F, 1.0F, 1.0009765625F},
                              {1.0078125F, 1.0F, 1.0F},
                              {0.3F, 2.0F, 2.0F},
                              {0.0F, -0.0F, -0.0F},
                              {kNan, 1.5F, 1.5F},
                              {1.5F, kNan, kNan}};
  const auto n = static_cast<int64_t>(rows.size());
  Guarded x(ctx, {n}, DType::kF32);
  Tensor value = Tensor::empty(ctx, {n}, DType::kBF16);
  for (int64_t i = 0; i < n; ++i) {
    x.tensor.data<float>()[i] = rows[static_cast<size_t>(i)].x;
    value.data<bf16>()[i] = bf16(rows[static_cast<size_t>(i)].value);
  }
  fill_unless_rounds_to(ctx, value, x.tensor);
  for (int64_t i = 0; i < n; ++i) {
    const float wanted = rows[static_cast<size_t>(i)].wanted;
    const float actual = x.tensor.data<float>()[i];
    EXPECT_EQ(std::isnan(actual), std::isnan(wanted)) << i;
    EXPECT_EQ(std::signbit(actual), std::signbit(wanted)) << i;
    if (!std::isnan(wanted)) {
      EXPECT_EQ(actual, wanted) << i;
    }
    EXPECT_EQ(bf16(actual).bits, value.data<bf16>()[i].bits) << i;
  }
  EXPECT_TRUE(x.intact());
}

TEST(FillErrors, NameWhatIsWrong) {
  Context ctx;
  Tensor ids = Tensor::zeros(ctx, {2}, DType::kI32), two = Tensor::zeros(ctx, {2}, DType::kF32);
  Tensor three = Tensor::zeros(ctx, {3}, DType::kBF16), none;
  EXPECT_TRUE(throws_with<Error>([&] { fill(ctx, 1.0, ids); }, {"fill", "i32"}));
  EXPECT_TRUE(throws_with<Error>([&] { fill(ctx, 1.0, none); }, {"x is undefined"}));
  EXPECT_TRUE(throws_with<Error>([&] { fill_normal(ctx, {.x = two, .first = -1}); },
                                 {"first is -1", "at least 0"}));
  EXPECT_TRUE(
      throws_with<Error>([&] { fill_unless_rounds_to(ctx, three, two); }, {"[3]", "2 elements"}));
  EXPECT_TRUE(
      throws_with<Error>([&] { fill_unless_rounds_to(ctx, two, three); }, {"x is bf16", "f32"}));
}

}  // namespace
}  // namespace spillway::kernels
