// Parts of a tensor: rows of every rank, slices, and what lies beyond.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "spillway/tensor/tensor.h"
#include "support/throws.h"

namespace spillway {
namespace {

using testing::throws_with;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct RankCase {
  const char* name;
  Shape shape;
  int64_t row;  // elements of a row
};

class RowsOfRank : public ::testing::TestWithParam<RankCase> {
 protected:
  Context ctx_;
  Tensor tensor_ = Tensor::zeros(ctx_, GetParam().shape, DType::kI32);
};

TEST_P(RowsOfRank, EveryRange) {
  for (int64_t begin = 0; begin <= tensor_.dim(0); ++begin) {
    for (int64_t end = begin; end <= tensor_.dim(0); ++end) {
      Tensor part = tensor_.rows(begin, end);
      EXPECT_EQ(part.shape(), GetParam().shape.with_dim(0, end - begin));
      EXPECT_EQ(part.numel(), (end - begin) * GetParam().row);
      EXPECT_TRUE(part.shares_storage(tensor_));
      if (part.numel() == 0) continue;
      EXPECT_EQ(part.data<int32_t>(), tensor_.data<int32_t>() + begin * GetParam().row);
    }
  }
}

TEST_P(RowsOfRank, BeyondTheEndsThrows) {
  const int64_t n = tensor_.dim(0);
  const std::pair<int64_t, int64_t> ranges[] = {{-1, 0}, {0, n + 1}, {n + 1, n + 1}, {1, 0},
                                                {0, -1}, {0, kMax},  {-kMax, kMax},  {kMax, kMax}};
  for (const auto& [begin, end] : ranges) {
    EXPECT_TRUE(throws_with<Error>([&, from = begin, to = end] { tensor_.rows(from, to); },
                                   {str("rows [", begin, ", ", end, ") of ", tensor_.shape())}));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tensor, RowsOfRank,
    ::testing::Values(RankCase{"Vector", {4}, 1}, RankCase{"Matrix", {3, 5}, 5},
                      RankCase{"Cube", {3, 2, 4}, 8}, RankCase{"Four", {2, 3, 4, 5}, 60},
                      RankCase{"NoRows", {0, 5}, 5}, RankCase{"RowsWithoutElements", {3, 0}, 0}),
    [](const auto& test) { return std::string(test.param.name); });

struct SliceCase {
  const char* name;
  int64_t begin;
  Shape shape;
  bool fits;
};

class SliceOfTwelve : public ::testing::TestWithParam<SliceCase> {};

TEST_P(SliceOfTwelve, IsInsideOrThrows) {
  Context ctx;
  Tensor tensor = Tensor::zeros(ctx, {3, 4}, DType::kI32);
  const auto& [name, begin, shape, fits] = GetParam();
  if (!fits) {
    EXPECT_TRUE(
        throws_with<Error>([&, from = begin, wanted = shape] { tensor.slice(from, wanted); },
                           {str("slice of ", shape, " at ", begin, " of [3, 4]")}));
    return;
  }
  Tensor part = tensor.slice(begin, shape);
  EXPECT_EQ(part.shape(), shape);
  EXPECT_EQ(part.numel(), shape.numel());
  EXPECT_EQ(part.data<int32_t>(), part.numel() == 0 ? nullptr : tensor.data<int32_t>() + begin);
}

INSTANTIATE_TEST_SUITE_P(
    Tensor, SliceOfTwelve,
    ::testing::Values(SliceCase{"All", 0, {12}, true}, SliceCase{"AcrossRows", 3, {2, 2}, true},
                      SliceCase{"Last", 11, {1}, true}, SliceCase{"Scalar", 5, {}, true},
                      SliceCase{"NothingAtTheEnd", 12, {0}, true},
                      SliceCase{"OneTooFar", 12, {1}, false}, SliceCase{"TooLong", 0, {13}, false},
                      SliceCase{"NothingBeyondTheEnd", 13, {0}, false},
                      SliceCase{"Negative", -1, {2}, false},
                      // begin + count would wrap to a small number
                      SliceCase{"SumBeyond64Bits", kMax, {kMax}, false},
                      SliceCase{"BeginBeyond64Bits", kMax, {4}, false}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway
