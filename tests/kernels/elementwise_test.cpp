#include "spillway/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::Guarded;
using testing::matrix_case_name;
using testing::matrix_cases;
using testing::MatrixCase;
using testing::random_tensor;
using testing::same_bytes;
using testing::throws_with;
using testing::to_doubles;
using testing::tolerance;

class Elementwise : public ::testing::TestWithParam<MatrixCase> {
 protected:
  Shape shape() const { return {GetParam().rows, GetParam().cols}; }
  Context ctx_{Device::kCpu, 2};
};

TEST_P(Elementwise, Add) {
  const Tensor a = random_tensor(ctx_, shape(), GetParam().dtype, 1);
  const Tensor b = random_tensor(ctx_, shape(), GetParam().dtype, 2);
  Guarded out(ctx_, shape(), GetParam().dtype);
  add(ctx_, a, b, out.tensor);
  std::vector<double> wanted = to_doubles(a);
  const std::vector<double> other = to_doubles(b);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += other[i];
  EXPECT_TRUE(all_near(out.tensor, wanted, tolerance(GetParam().dtype)));
  EXPECT_TRUE(out.intact());

  Tensor in_place = a.clone(ctx_);
  add(ctx_, in_place, b, in_place);
  EXPECT_TRUE(same_bytes(in_place, out.tensor));
}

TEST_P(Elementwise, AddIntoEveryAccumulator) {
  const Tensor x = random_tensor(ctx_, shape(), GetParam().dtype, 3);
  for (const DType acc_dtype : testing::float_dtypes()) {
    Guarded acc(ctx_, shape(), acc_dtype);
    copy(random_tensor(ctx_, shape(), acc_dtype, 4), acc.tensor);
    std::vector<double> wanted = to_doubles(acc.tensor);
    const std::vector<double> terms = to_doubles(x);
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += terms[i];
    add_into(ctx_, x, acc.tensor);
    EXPECT_TRUE(all_near(acc.tensor, wanted, tolerance(acc_dtype))) << dtype_name(acc_dtype);
    EXPECT_TRUE(acc.intact());
  }
}

TEST_P(Elementwise, ScaleInPlace) {
  Guarded x(ctx_, shape(), GetParam().dtype);
  copy(random_tensor(ctx_, shape(), GetParam().dtype, 5), x.tensor);
  std::vector<double> wanted = to_doubles(x.tensor);
  for (double& value : wanted) value *= -0.3;
  scale_in_place(ctx_, -0.3, x.tensor);
  EXPECT_TRUE(all_near(x.tensor, wanted, tolerance(GetParam().dtype)));
  EXPECT_TRUE(x.intact());
}

TEST_P(Elementwise, CastToEveryDtype) {
  const Tensor from = random_tensor(ctx_, shape(), GetParam().dtype, 6);
  for (const DType to_dtype : testing::float_dtypes()) {
    Guarded to(ctx_, shape(), to_dtype);
    cast(ctx_, from, to.tensor);
    Tensor wanted = Tensor::empty(ctx_, shape(), to_dtype);
    for (int64_t i = 0; i < from.numel(); ++i) {
      testing::set_element(wanted, i, testing::element(from, i));
    }
    EXPECT_TRUE(same_bytes(to.tensor, wanted)) << dtype_name(to_dtype);
    EXPECT_TRUE(to.intact());
  }
}

TEST_P(Elementwise, SumSquares) {
  const Tensor x = random_tensor(ctx_, shape(), GetParam().dtype, 7);
  const std::vector<double> values = to_doubles(x);
  const double wanted = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  EXPECT_NEAR(sum_squares(ctx_, x), wanted, 1e-12 * wanted);
  Context one;
  EXPECT_EQ(sum_squares(ctx_, x), sum_squares(one, x));
}

TEST_P(Elementwise, ChecksumSeesEveryElement) {
  Tensor x = random_tensor(ctx_, shape(), GetParam().dtype, 9);
  const uint64_t before = checksum(x);
  EXPECT_EQ(checksum(x.clone(ctx_)), before);
  auto* bytes = static_cast<unsigned char*>(x.raw_data());
  for (int64_t i = 0; i < x.bytes(); i += std::max<int64_t>(1, x.bytes() / 50)) {
    bytes[i] ^= 1;
    EXPECT_NE(checksum(x), before) << "byte " << i;
    bytes[i] ^= 1;
  }
  EXPECT_EQ(checksum(x), before);
}

INSTANTIATE_TEST_SUITE_P(
    Grid, Elementwise,
    ::testing::ValuesIn(matrix_cases({{0, 5}, {1, 1}, {3, 7}, {16, 64}, {37, 1101}})),
    matrix_case_name);

TEST(Checksum, PositionAndLengthMatter) {
  Context ctx;
  const Tensor ab = testing::tensor_of<double>(ctx, {2}, {1.0, 2.0});
  const Tensor ba = testing::tensor_of<double>(ctx, {2}, {2.0, 1.0});
  EXPECT_NE(checksum(ab), checksum(ba));
  EXPECT_NE(checksum(Tensor::zeros(ctx, {3}, DType::kBF16)),
            checksum(Tensor::zeros(ctx, {4}, DType::kBF16)));
  EXPECT_NE(checksum(Tensor::zeros(ctx, {0}, DType::kF64)),
            checksum(Tensor::zeros(ctx, {1}, DType::kF64)));
}

TEST(Checksum, IsAFixedFunctionOfTheBytes) {
  // Worked out apart from this code; another value means that builds no longer agree.
  constexpr uint64_t kChecksumOf123 = 0xb6608716a7de214fULL;
  Context ctx;
  const Tensor x = testing::tensor_of<int64_t>(ctx, {3}, {1, 2, 3});
  EXPECT_EQ(checksum(x), checksum(testing::tensor_of<int32_t>(ctx, {6}, {1, 0, 2, 0, 3, 0})));
  EXPECT_EQ(checksum(x), kChecksumOf123);
}

TEST(SumSquares, DoesNotDependOnAlignment) {
  Context ctx;
  const Tensor values = random_tensor(ctx, {1001}, DType::kF32, 10);
  const Tensor buffer = Tensor::empty(ctx, {1100}, DType::kF32);
  const double wanted = sum_squares(ctx, values);
  for (int64_t offset = 0; offset < 9; ++offset) {
    Tensor moved = buffer.slice(offset, {1001});
    copy(values, moved);
    EXPECT_EQ(sum_squares(ctx, moved), wanted) << offset;
  }
}

TEST(ElementwiseErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor a = Tensor::zeros(ctx, {2, 3}, DType::kF32);
  Tensor b = Tensor::zeros(ctx, {3, 2}, DType::kF32);
  Tensor c = Tensor::zeros(ctx, {2, 3}, DType::kBF16);
  Tensor ids = Tensor::zeros(ctx, {2, 3}, DType::kI32);
  Tensor none;
  EXPECT_TRUE(throws_with<Error>([&] { add(ctx, a, b, a); }, {"add: b", "[3, 2]", "[2, 3]"}));
  EXPECT_TRUE(throws_with<Error>([&] { add(ctx, a, a, c); }, {"add: out", "bf16", "f32"}));
  EXPECT_TRUE(throws_with<Error>([&] { add(ctx, a, none, a); }, {"add: b is undefined"}));
  EXPECT_TRUE(throws_with<Error>([&] { add_into(ctx, ids, a); }, {"add_into: x is i32"}));
  EXPECT_TRUE(throws_with<Error>([&] { cast(ctx, a, b); }, {"cast: to", "[3, 2]"}));
  EXPECT_TRUE(throws_with<Error>([&] { scale_in_place(ctx, 2.0, ids); }, {"x is i32"}));
  EXPECT_TRUE(throws_with<Error>([&] { sum_squares(ctx, ids); }, {"sum_squares: x is i32"}));
  Context gpu(Device::kCuda, 1);
  EXPECT_TRUE(throws_with<Error>([&] { sum_squares(gpu, a); }, {"x is on cpu", "cuda"}));
}

}  // namespace
}  // namespace spillway::kernels
