#include "spillway/tensor/shape.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "support/throws.h"

namespace spillway {
namespace {

using testing::throws_with;

constexpr int64_t kHuge = int64_t{1} << 40;

struct ShapeCase {
  const char* name;
  Shape shape;
  std::vector<int64_t> dims;
  int64_t numel, rows;
  const char* text;
};

class Shapes : public ::testing::TestWithParam<ShapeCase> {};

TEST_P(Shapes, SizesFromBothEnds) {
  const auto& c = GetParam();
  const int rank = static_cast<int>(c.dims.size());
  ASSERT_EQ(c.shape.rank(), rank);
  for (int i = 0; i < rank; ++i) {
    EXPECT_EQ(c.shape[i], c.dims[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(c.shape[i - rank], c.dims[static_cast<size_t>(i)]) << i - rank;
  }
}

TEST_P(Shapes, ProductsAndText) {
  const auto& c = GetParam();
  EXPECT_EQ(c.shape.numel(), c.numel);
  EXPECT_EQ(c.shape.rows(), c.rows);
  EXPECT_EQ(c.shape.str(), c.text);
  std::ostringstream out;
  out << c.shape;
  EXPECT_EQ(out.str(), c.text);
}

TEST_P(Shapes, IndexBeyondTheEndsThrows) {
  const auto& c = GetParam();
  const int rank = c.shape.rank();
  for (const int i : {rank, -rank - 1, Shape::kMaxRank, INT32_MAX, INT32_MIN}) {
    EXPECT_TRUE(throws_with<Error>([&] { return c.shape[i]; },
                                   {"dimension " + std::to_string(i) + " of shape " + c.text}));
    EXPECT_THROW(c.shape.with_dim(i, 1), Error);
  }
}

TEST_P(Shapes, WithDimChangesOneSize) {
  const auto& c = GetParam();
  const int rank = c.shape.rank();
  for (int i = 0; i < rank; ++i) {
    const Shape changed = c.shape.with_dim(i, 77);
    ASSERT_EQ(changed.rank(), rank);
    for (int j = 0; j < rank; ++j) EXPECT_EQ(changed[j], j == i ? 77 : c.shape[j]) << i << j;
    EXPECT_EQ(c.shape.with_dim(i - rank, 77), changed);
    EXPECT_EQ(changed.with_dim(i, c.shape[i]), c.shape);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shape, Shapes,
    ::testing::Values(ShapeCase{"Scalar", {}, {}, 1, 1, "[]"},
                      ShapeCase{"Vector", {5}, {5}, 5, 1, "[5]"},
                      ShapeCase{"EmptyVector", {0}, {0}, 0, 1, "[0]"},
                      ShapeCase{"Matrix", {2, 3}, {2, 3}, 6, 2, "[2, 3]"},
                      ShapeCase{"NoRows", {0, 3}, {0, 3}, 0, 0, "[0, 3]"},
                      ShapeCase{"NoColumns", {3, 0}, {3, 0}, 0, 3, "[3, 0]"},
                      ShapeCase{"Cube", {2, 3, 4}, {2, 3, 4}, 24, 6, "[2, 3, 4]"},
                      ShapeCase{"Four", {2, 3, 4, 5}, {2, 3, 4, 5}, 120, 24, "[2, 3, 4, 5]"},
                      // A size of 0 makes any product 0, also after sizes that would not fit.
                      ShapeCase{"HugeAndZero",
                                {kHuge, kHuge, 0, 2},
                                {kHuge, kHuge, 0, 2},
                                0,
                                0,
                                "[1099511627776, 1099511627776, 0, 2]"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Shape, ComparesRankAndSizes) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  EXPECT_NE((Shape{0}), (Shape{}));
  EXPECT_EQ(Shape{}, Shape());
}

TEST(Shape, NegativeSizeThrows) {
  EXPECT_TRUE(throws_with<Error>([] { (void)Shape{4, -2}; }, {"a dimension of -2 in a shape"}));
  EXPECT_TRUE(throws_with<Error>(
      [] {
        (void)Shape{4, 2}.with_dim(0, -3);
      },
      {"a dimension of -3 in a shape"}));
}

TEST(Shape, FiveDimensionsThrow) {
  EXPECT_TRUE(throws_with<Error>(
      [] {
        (void)Shape{1, 1, 1, 1, 1};
      },
      {"5 dimensions in a shape, at most 4 are allowed"}));
}

TEST(Shape, ProductsBeyond64BitsThrow) {
  const Shape huge{kHuge, kHuge, 2};
  EXPECT_TRUE(throws_with<Error>([&] { (void)huge.numel(); }, {"overflows 64 bits"}));
  EXPECT_TRUE(throws_with<Error>([&] { (void)huge.rows(); }, {"overflows 64 bits"}));
  EXPECT_EQ((Shape{2, kHuge, 1 << 20}).rows(), 2 * kHuge);
}

}  // namespace
}  // namespace spillway
