#include "spillway/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/throws.h"

namespace spillway {
namespace {

using testing::throws_with;

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kI64};

Tensor counting(Context& ctx, Shape shape) {
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from<int64_t>(ctx, shape, values);
}

std::vector<int64_t> values_of(const Tensor& tensor) {
  const auto span = tensor.span<int64_t>();
  return {span.begin(), span.end()};
}

/// Calls f with the C++ type of any dtype.
template <typename F>
void visit(DType dtype, F&& f) {
  if (dtype == DType::kI32) return f.template operator()<int32_t>();
  if (dtype == DType::kI64) return f.template operator()<int64_t>();
  visit_float(dtype, std::forward<F>(f));
}

class TensorOf : public ::testing::TestWithParam<DType> {
 protected:
  Context ctx_;
};

TEST_P(TensorOf, EmptyHasShapeSizeAndAlignedMemory) {
  const Tensor t = Tensor::empty(ctx_, {3, 5}, GetParam(), Purpose::kOptimizer);
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.shape(), (Shape{3, 5}));
  EXPECT_EQ(t.dim(-1), 5);
  EXPECT_EQ(t.numel(), 15);
  EXPECT_EQ(t.bytes(), 15 * dtype_bytes(GetParam()));
  EXPECT_EQ(t.dtype(), GetParam());
  EXPECT_EQ(t.device(), Device::kCpu);
  EXPECT_EQ(t.purpose(), Purpose::kOptimizer);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw_data()) % 64, 0U);
  EXPECT_EQ(ctx_.allocator()->use(Purpose::kOptimizer).current_bytes, t.bytes());
}

TEST_P(TensorOf, DataHasOneTypeOnly) {
  Tensor t = Tensor::empty(ctx_, {2}, GetParam());
  const Tensor& constant = t;
  for (const DType other : kDTypes) {
    visit(other, [&]<typename T>() {
      if (other == GetParam()) {
        EXPECT_EQ(t.data<T>(), t.raw_data());
        EXPECT_EQ(constant.data<T>(), t.raw_data());
        EXPECT_EQ(t.span<T>().size(), 2U);
        return;
      }
      EXPECT_TRUE(throws_with<Error>(
          [&] { t.data<T>(); },
          {str("tensor of ", dtype_name(GetParam()), " read as ", dtype_name(other))}));
      EXPECT_THROW(constant.data<T>(), Error);
      EXPECT_THROW(t.span<T>(), Error);
    });
  }
}

// Blocks are reused: zeros come over what a former tensor left.
TEST_P(TensorOf, ZerosOverUsedMemory) {
  visit(GetParam(), [&]<typename T>() {
    const T one = static_cast<T>(1.0F);
    Tensor::from<T>(ctx_, {4}, std::vector<T>(4, one));
    const Tensor t = Tensor::zeros(ctx_, {4}, GetParam());
    for (const T& value : t.span<T>()) EXPECT_EQ(static_cast<float>(value), 0.0F);
  });
}

TEST_P(TensorOf, FromCopiesValues) {
  visit(GetParam(), [&]<typename T>() {
    std::vector<T> values;
    for (int i = 0; i < 6; ++i) values.push_back(static_cast<T>(static_cast<float>(i)));
    const Tensor t = Tensor::from<T>(ctx_, {2, 3}, values, Purpose::kData);
    values.assign(6, static_cast<T>(9.0F));
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(static_cast<float>(t.span<T>()[i]), static_cast<float>(i));
    }
    EXPECT_EQ(t.purpose(), Purpose::kData);
  });
}

TEST_P(TensorOf, PartsStartAtTheirElement) {
  const Tensor t = Tensor::empty(ctx_, {4, 3}, GetParam());
  const auto* begin = static_cast<const std::byte*>(t.raw_data());
  EXPECT_EQ(t.rows(2, 4).raw_data(), begin + 6 * dtype_bytes(GetParam()));
  EXPECT_EQ(t.slice(7, {5}).raw_data(), begin + 7 * dtype_bytes(GetParam()));
  EXPECT_EQ(t.rows(1, 4).rows(1, 2).slice(2, {1}).raw_data(), begin + 8 * dtype_bytes(GetParam()));
}

TEST_P(TensorOf, TooLargeForMemoryOr64BitsThrows) {
  // 2^62 elements: the bytes of all but one dtype fold to a small number modulo 2^64.
  EXPECT_THROW(Tensor::empty(ctx_, {int64_t{1} << 62}, GetParam()), Error);
  EXPECT_THROW(Tensor::empty(ctx_, {int64_t{1} << 40, int64_t{1} << 40}, GetParam()), Error);
  EXPECT_EQ(ctx_.allocator()->total().peak_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Tensor, TensorOf, ::testing::ValuesIn(kDTypes),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

class TensorTest : public ::testing::Test {
 protected:
  Context ctx_;
};

TEST_F(TensorTest, FromWantsAsManyValuesAsElements) {
  const std::vector<float> values(5);
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        Tensor::from<float>(ctx_, {2, 3}, values);
      },
      {"5 values for shape [2, 3]"}));
  EXPECT_EQ(ctx_.allocator()->total().peak_bytes, 0);
}

TEST_F(TensorTest, WithoutElementsHasNoMemory) {
  Tensor t = Tensor::zeros(ctx_, {0, 4}, DType::kF32);
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.data<float>(), nullptr);
  EXPECT_TRUE(t.span<float>().empty());
  EXPECT_EQ(ctx_.allocator()->total().peak_bytes, 0);
  EXPECT_EQ(t.rows(0, 0).shape(), (Shape{0, 4}));
  EXPECT_EQ(t.view({7, 0}).shape(), (Shape{7, 0}));
  EXPECT_EQ(t.clone(ctx_).shape(), t.shape());
  EXPECT_EQ(t.slice(0, {0}).numel(), 0);
}

TEST_F(TensorTest, ScalarHasOneElement) {
  Tensor t = Tensor::zeros(ctx_, {}, DType::kF64);
  EXPECT_EQ(t.numel(), 1);
  t.data<double>()[0] = 2.5;
  EXPECT_EQ(t.view({1, 1}).data<double>()[0], 2.5);
  EXPECT_THROW(t.rows(0, 0), Error);
}

TEST_F(TensorTest, ViewSharesMemoryUnderAnotherShape) {
  Tensor t = counting(ctx_, {2, 6});
  Tensor view = t.view({3, 4});
  view.data<int64_t>()[5] = 55;
  EXPECT_EQ(view.shape(), (Shape{3, 4}));
  EXPECT_EQ(t.data<int64_t>()[5], 55);
  EXPECT_EQ(values_of(t.rows(1, 2).view({2, 3}).rows(1, 2)), (std::vector<int64_t>{9, 10, 11}));
}

TEST_F(TensorTest, ViewOfAnotherSizeThrows) {
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        counting(ctx_, {2, 6}).view({5, 2});
      },
      {"view of [2, 6] as [5, 2]"}));
}

TEST_F(TensorTest, CopyOfATensorSharesMemory) {
  Tensor t = counting(ctx_, {3});
  Tensor same = t;
  same.data<int64_t>()[1] = 7;
  EXPECT_EQ(values_of(t), (std::vector<int64_t>{0, 7, 2}));
}

TEST_F(TensorTest, CloneHasMemoryOfItsOwn) {
  Tensor t = counting(ctx_, {4, 2});
  const Tensor part = t.rows(1, 3);
  const Tensor clone = part.clone(ctx_, Purpose::kReceive);
  t.zero();
  EXPECT_EQ(clone.shape(), (Shape{2, 2}));
  EXPECT_EQ(values_of(clone), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(clone.purpose(), Purpose::kReceive);
  EXPECT_FALSE(clone.shares_storage(t));
}

TEST_F(TensorTest, ZeroOfAPartLeavesTheRest) {
  Tensor t = counting(ctx_, {4, 2});
  t.rows(1, 3).zero();
  EXPECT_EQ(values_of(t), (std::vector<int64_t>{0, 1, 0, 0, 0, 0, 6, 7}));
}

TEST_F(TensorTest, UniqueUntilAnotherTensorShares) {
  Tensor t = counting(ctx_, {4});
  EXPECT_TRUE(t.unique());
  {
    const Tensor part = t.rows(1, 2);
    EXPECT_FALSE(t.unique());
    EXPECT_FALSE(part.unique());
  }
  EXPECT_TRUE(t.unique());
  const Tensor moved = std::move(t);
  EXPECT_TRUE(moved.unique());
  EXPECT_FALSE(Tensor().unique());
}

TEST_F(TensorTest, SharesStorage) {
  const Tensor a = counting(ctx_, {4}), b = counting(ctx_, {4});
  EXPECT_TRUE(a.rows(0, 1).shares_storage(a.rows(3, 4)));
  EXPECT_FALSE(a.shares_storage(b));
  EXPECT_FALSE(a.shares_storage(Tensor()));
  EXPECT_FALSE(Tensor().shares_storage(Tensor()));
}

TEST_F(TensorTest, CopyBetweenTensors) {
  const Tensor from = counting(ctx_, {2, 2});
  Tensor to = Tensor::zeros(ctx_, {3, 2}, DType::kI64);
  Tensor part = to.rows(1, 3);
  copy(from, part);
  EXPECT_EQ(values_of(to), (std::vector<int64_t>{0, 0, 0, 1, 2, 3}));
}

TEST_F(TensorTest, CopyBetweenOverlappingParts) {
  Tensor up = counting(ctx_, {100}), down = counting(ctx_, {100});
  Tensor up_target = up.slice(1, {99}), down_target = down.slice(0, {99});
  copy(up.slice(0, {99}), up_target);
  copy(down.slice(1, {99}), down_target);
  for (int64_t i = 0; i < 99; ++i) {
    EXPECT_EQ(up.data<int64_t>()[i + 1], i);
    EXPECT_EQ(down.data<int64_t>()[i], i + 1);
  }
}

TEST_F(TensorTest, CopyBetweenDifferentTensorsThrows) {
  const Tensor from = counting(ctx_, {2, 2});
  Tensor shape = Tensor::zeros(ctx_, {4}, DType::kI64),
         dtype = Tensor::zeros(ctx_, {2, 2}, DType::kF64);
  EXPECT_TRUE(throws_with<Error>([&] { copy(from, shape); }, {"copy of [2, 2] i64 to [4] i64"}));
  EXPECT_TRUE(throws_with<Error>([&] { copy(from, dtype); }, {"copy of [2, 2] i64 to [2, 2] f64"}));
}

TEST_F(TensorTest, MovedFromIsUndefined) {
  Tensor t = counting(ctx_, {4});
  const Tensor moved = std::move(t);
  EXPECT_EQ(values_of(moved).size(), 4U);
  EXPECT_FALSE(t.defined());  // NOLINT(bugprone-use-after-move): what this test is about
  EXPECT_THROW(t.data<int64_t>(), Error);
  EXPECT_THROW(t.rows(0, 1), Error);
}

struct UndefinedCase {
  const char* name;
  std::function<void(Tensor&, Context&)> use;
};

class UndefinedTensor : public ::testing::TestWithParam<UndefinedCase> {};

TEST_P(UndefinedTensor, Throws) {
  Context ctx;
  Tensor undefined;
  EXPECT_FALSE(undefined.defined());
  EXPECT_TRUE(
      throws_with<Error>([&] { GetParam().use(undefined, ctx); }, {" of an undefined tensor"}));
  EXPECT_EQ(ctx.allocator()->total().current_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Tensor, UndefinedTensor,
    ::testing::Values(
        UndefinedCase{"Data", [](Tensor& none, Context&) { none.data<float>(); }},
        UndefinedCase{"DataOfAnotherType", [](Tensor& none, Context&) { none.data<int64_t>(); }},
        UndefinedCase{"RawData", [](Tensor& none, Context&) { none.raw_data(); }},
        UndefinedCase{"Span", [](Tensor& none, Context&) { none.span<float>(); }},
        UndefinedCase{"View", [](Tensor& none, Context&) { none.view({0}); }},
        UndefinedCase{"Rows", [](Tensor& none, Context&) { none.rows(0, 0); }},
        UndefinedCase{"Slice", [](Tensor& none, Context&) { none.slice(0, {0}); }},
        UndefinedCase{"Clone", [](Tensor& none, Context& ctx) { none.clone(ctx); }},
        UndefinedCase{"Zero", [](Tensor& none, Context&) { none.zero(); }},
        UndefinedCase{"Purpose", [](Tensor& none, Context&) { (void)none.purpose(); }},
        UndefinedCase{"Copy",
                      [](Tensor& none, Context&) {
                        Tensor to;
                        copy(none, to);
                      }}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway
