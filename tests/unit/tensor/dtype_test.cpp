#include "spillway/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "support/throws.h"

namespace spillway {
namespace {

static_assert(std::is_same_v<acc_t<float>, float> && std::is_same_v<acc_t<bf16>, float>);
static_assert(std::is_same_v<acc_t<double>, double>);
static_assert(sizeof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);

struct DTypeCase {
  DType dtype;
  const char* name;
  int64_t bytes;
  DType accumulator;
  bool is_float;
};

class EachDType : public ::testing::TestWithParam<DTypeCase> {};

TEST_P(EachDType, HasNameSizeAndAccumulator) {
  EXPECT_EQ(dtype_name(GetParam().dtype), GetParam().name);
  EXPECT_EQ(dtype_bytes(GetParam().dtype), GetParam().bytes);
  EXPECT_EQ(accumulator_dtype(GetParam().dtype), GetParam().accumulator);
}

TEST_P(EachDType, VisitFloatCallsWithTheTypeOrNamesTheDType) {
  int calls = 0;
  const auto visit = [&] {
    return visit_float(GetParam().dtype, [&]<typename T>() {
      ++calls;
      EXPECT_EQ(DTypeOf<T>::value, GetParam().dtype);
      return sizeof(T);
    });
  };
  if (GetParam().is_float) {
    EXPECT_EQ(static_cast<int64_t>(visit()), GetParam().bytes);
    EXPECT_EQ(calls, 1);
  } else {
    EXPECT_TRUE(testing::throws_with<Error>(
        visit, {"dtype " + std::string(GetParam().name) + " is not one of f32, f64, bf16"}));
    EXPECT_EQ(calls, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(DType, EachDType,
                         ::testing::Values(DTypeCase{DType::kF32, "f32", 4, DType::kF32, true},
                                           DTypeCase{DType::kF64, "f64", 8, DType::kF64, true},
                                           DTypeCase{DType::kBF16, "bf16", 2, DType::kF32, true},
                                           DTypeCase{DType::kI32, "i32", 4, DType::kF32, false},
                                           DTypeCase{DType::kI64, "i64", 8, DType::kF32, false}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(DTypeOf, GoesFromTypeToDType) {
  EXPECT_EQ(DTypeOf<float>::value, DType::kF32);
  EXPECT_EQ(DTypeOf<double>::value, DType::kF64);
  EXPECT_EQ(DTypeOf<bf16>::value, DType::kBF16);
  EXPECT_EQ(DTypeOf<int32_t>::value, DType::kI32);
  EXPECT_EQ(DTypeOf<int64_t>::value, DType::kI64);
}

}  // namespace
}  // namespace spillway
