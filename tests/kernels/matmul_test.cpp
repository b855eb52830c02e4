#include "spillway/kernels/matmul.h"

#include "kernels/matrix_testing.h"

namespace spillway::kernels {
namespace {

using testing::Guarded;
using testing::guarded_random;

struct Types {
  DType in;
  DType out;
};
struct Size {
  int64_t m, n, k;
};
struct Case {
  Types types;
  Size size;
  bool trans_a, trans_b, accumulate;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return str(dtype_name(c.types.in), "_to_", dtype_name(c.types.out), "_", c.trans_a ? "T" : "N",
             c.trans_b ? "T" : "N", c.accumulate ? "_add_" : "_", c.size.m, "x", c.size.n, "x",
             c.size.k);
}

std::vector<Case> grid() {
  const Types types[] = {{DType::kF32, DType::kF32},
                         {DType::kF64, DType::kF64},
                         {DType::kBF16, DType::kBF16},
                         {DType::kBF16, DType::kF32}};
  // Empty, one, odd, aligned; past one block of rows (256) and of depth (512).
  const Size sizes[] = {{0, 4, 4},    {4, 0, 4},    {4, 4, 0},     {1, 1, 1},    {7, 5, 3},
                        {33, 17, 31}, {64, 64, 64}, {300, 24, 70}, {40, 32, 559}};
  std::vector<Case> cases;
  for (const Types& t : types) {
    for (const Size& size : sizes) {
      for (int flags = 0; flags < 8; ++flags) {
        cases.push_back({t, size, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0});
      }
    }
  }
  return cases;
}

class MatmulTest : public ::testing::TestWithParam<Case> {
 protected:
  static Shape stored(int64_t rows, int64_t cols, bool transposed) {
    return transposed ? Shape{cols, rows} : Shape{rows, cols};
  }
};

TEST_P(MatmulTest, AgreesWithDoubles) {
  const auto& [types, size, trans_a, trans_b, accumulate] = GetParam();
  const auto [m, n, k] = size;
  Context ctx(Device::kCpu, 2);
  const Guarded a = guarded_random(ctx, stored(m, k, trans_a), types.in, 1);
  const Guarded b = guarded_random(ctx, stored(k, n, trans_b), types.in, 2);
  Guarded c =
      accumulate ? guarded_random(ctx, {m, n}, types.out, 3) : Guarded(ctx, {m, n}, types.out);
  const std::vector<double> x = testing::to_doubles(a.tensor);
  const std::vector<double> y = testing::to_doubles(b.tensor);
  const std::vector<double> former = testing::to_doubles(c.tensor);

  matmul(ctx, {.a = a.tensor,
               .b = b.tensor,
               .c = c.tensor,
               .trans_a = trans_a,
               .trans_b = trans_b,
               .accumulate = accumulate});

  const std::vector<double> got = testing::to_doubles(c.tensor);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<size_t>(i * n + j);
      double want = accumulate ? former[at] : 0.0;
      double magnitude = std::abs(want);
      for (int64_t l = 0; l < k; ++l) {
        const double product = x[static_cast<size_t>(trans_a ? l * m + i : i * k + l)] *
                               y[static_cast<size_t>(trans_b ? j * k + l : l * n + j)];
        want += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(got[at], want, testing::sum_tolerance(types.in, types.out, k, magnitude))
          << "c[" << i << ", " << j << "]";
    }
  }
  EXPECT_TRUE(c.intact()) << "c";
}

INSTANTIATE_TEST_SUITE_P(Grid, MatmulTest, ::testing::ValuesIn(grid()), case_name);

class MatmulDtypeTest : public ::testing::TestWithParam<DType> {};

TEST_P(MatmulDtypeTest, SameBitsEveryTime) {
  Context ctx(Device::kCpu, 2);
  const Guarded a = guarded_random(ctx, {130, 96}, GetParam(), 1);
  const Guarded b = guarded_random(ctx, {96, 72}, GetParam(), 2);
  Guarded first(ctx, {130, 72}, GetParam());
  Guarded again(ctx, {130, 72}, GetParam());
  matmul(ctx, {.a = a.tensor, .b = b.tensor, .c = first.tensor});
  for (int repeat = 0; repeat < 3; ++repeat) {
    matmul(ctx, {.a = a.tensor, .b = b.tensor, .c = again.tensor});
    ASSERT_TRUE(testing::same_bytes(first.tensor, again.tensor));
  }
}

TEST_P(MatmulDtypeTest, ReadsHigherRanksAsRows) {
  Context ctx;
  const Guarded a = guarded_random(ctx, {2, 3, 5}, GetParam(), 1);
  const Guarded b = guarded_random(ctx, {5, 4}, GetParam(), 2);
  Guarded deep(ctx, {2, 3, 4}, GetParam());
  Guarded flat(ctx, {6, 4}, GetParam());
  matmul(ctx, {.a = a.tensor, .b = b.tensor, .c = deep.tensor});
  matmul(ctx, {.a = a.tensor.view({6, 5}), .b = b.tensor, .c = flat.tensor});
  EXPECT_TRUE(testing::same_bytes(deep.tensor, flat.tensor));
}

// bf16 holds 256 and 258 but not 257 (which rounds to 256): a product of 257 that is rounded before
// 1 is added gives 256, one that is not gives 258.
TEST(MatmulBf16Test, AddsBeforeRounding) {
  Context ctx;
  Tensor a = Tensor::zeros(ctx, {1, 64}, DType::kBF16);
  Tensor b = Tensor::zeros(ctx, {64, 1}, DType::kBF16);
  Tensor c = Tensor::zeros(ctx, {1, 1}, DType::kBF16);
  testing::set_values(a, {16.0, 1.0});
  testing::set_values(b, {16.0, 1.0});
  testing::set_values(c, {1.0});
  matmul(ctx, {.a = a, .b = b, .c = c, .accumulate = true});
  EXPECT_EQ(testing::to_doubles(c)[0], 258.0);
}

std::string dtype_case_name(const ::testing::TestParamInfo<DType>& info) {
  return testing::dtype_label(info.param);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, MatmulDtypeTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         dtype_case_name);

TEST(MatmulErrorTest, DepthsDiffer) {
  Context ctx;
  const Tensor a = Tensor::zeros(ctx, {2, 3}, DType::kF32);
  const Tensor b = Tensor::zeros(ctx, {4, 5}, DType::kF32);
  Tensor c = Tensor::zeros(ctx, {2, 5}, DType::kF32);
  const std::string text = testing::error_of([&] { matmul(ctx, {.a = a, .b = b, .c = c}); });
  testing::expect_holds(text, {"matmul", "[2, 3]", "[4, 5]", "depth 3"});
}

TEST(MatmulErrorTest, ResultHasAnotherShape) {
  Context ctx;
  const Tensor a = Tensor::zeros(ctx, {3, 2}, DType::kF32);
  const Tensor b = Tensor::zeros(ctx, {3, 5}, DType::kF32);
  Tensor c = Tensor::zeros(ctx, {3, 5}, DType::kF32);
  const std::string text =
      testing::error_of([&] { matmul(ctx, {.a = a, .b = b, .c = c, .trans_a = true}); });
  testing::expect_holds(text, {"c has shape [3, 5]", "transposed", "[2, 5]"});
}

TEST(MatmulErrorTest, DtypesDiffer) {
  Context ctx;
  const Tensor a = Tensor::zeros(ctx, {2, 2}, DType::kF32);
  const Tensor b = Tensor::zeros(ctx, {2, 2}, DType::kBF16);
  Tensor c = Tensor::zeros(ctx, {2, 2}, DType::kF32);
  const std::string text = testing::error_of([&] { matmul(ctx, {.a = a, .b = b, .c = c}); });
  testing::expect_holds(text, {"b is bf16", "f32"});
}

TEST(MatmulErrorTest, ResultDtypeNotAllowed) {
  Context ctx;
  const Tensor a = Tensor::zeros(ctx, {2, 2}, DType::kF32);
  Tensor c = Tensor::zeros(ctx, {2, 2}, DType::kBF16);
  const std::string text = testing::error_of([&] { matmul(ctx, {.a = a, .b = a, .c = c}); });
  testing::expect_holds(text, {"c is bf16", "f32"});
}

TEST(MatmulErrorTest, IntegersAndUndefinedTensors) {
  Context ctx;
  const Tensor a = Tensor::zeros(ctx, {2, 2}, DType::kI32);
  const Tensor undefined;
  Tensor c = Tensor::zeros(ctx, {2, 2}, DType::kI32);
  testing::expect_holds(testing::error_of([&] { matmul(ctx, {.a = a, .b = a, .c = c}); }),
                        {"a is i32"});
  testing::expect_holds(testing::error_of([&] { matmul(ctx, {.a = undefined, .b = a, .c = c}); }),
                        {"a is undefined"});
}

}  // namespace
}  // namespace spillway::kernels
