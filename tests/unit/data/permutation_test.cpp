#include "spillway/data/permutation.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::data {
namespace {

std::vector<int64_t> images(int64_t n, uint64_t seed, uint64_t epoch) {
  const Permutation order(n, seed, epoch);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < n; ++i) result.push_back(order(i));
  return result;
}

/// Every element of [0, n) exactly once.
void expect_bijection(const std::vector<int64_t>& values) {
  std::vector<bool> seen(values.size(), false);
  for (const int64_t value : values) {
    ASSERT_GE(value, 0);
    ASSERT_LT(value, static_cast<int64_t>(values.size()));
    ASSERT_FALSE(seen[static_cast<size_t>(value)]) << value << " twice";
    seen[static_cast<size_t>(value)] = true;
  }
}

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (int64_t n = 1; n <= 300; ++n) {
    SCOPED_TRACE(n);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) expect_bijection(images(n, 7, epoch));
  }
}

class PermutationSize : public ::testing::TestWithParam<int64_t> {};
TEST_P(PermutationSize, IsABijection) { expect_bijection(images(GetParam(), 1, 2)); }
INSTANTIATE_TEST_SUITE_P(Sizes, PermutationSize, ::testing::Values(1000, 4095, 4096, 4097, 100003));

TEST(Permutation, HugeSizesStayInRangeWithoutRepeats) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  const Permutation order(kHuge, 3, 0);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t value = order(i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, kHuge);
    EXPECT_TRUE(seen.insert(value).second);
  }
}

TEST(Permutation, IsAFunctionOfItsArguments) { EXPECT_EQ(images(500, 9, 4), images(500, 9, 4)); }

TEST(Permutation, OtherSeedsAndEpochsGiveOtherOrders) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t epoch = 0; epoch < 10; ++epoch) orders.insert(images(50, seed, epoch));
  }
  EXPECT_EQ(orders.size(), 100U);
}

TEST(Permutation, EveryOrderOfThreeComesUpEquallyOften) {
  // 6000 draws of 6 orders: 1000 each, standard deviation 29; 5 of them is no accident.
  constexpr int kDraws = 6000, kExpected = 1000, kAllowed = 145;
  std::array<int, 27> counts{};
  for (uint64_t epoch = 0; epoch < kDraws; ++epoch) {
    const auto order = images(3, 11, epoch);
    ++counts[static_cast<size_t>(order[0] * 9 + order[1] * 3 + order[2])];
  }
  int orders = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++orders;
    EXPECT_NEAR(count, kExpected, kAllowed);
  }
  EXPECT_EQ(orders, 6);
}

TEST(Permutation, PlacesOfAnElementAreUniform) {
  // Chi-square over 64 places with 63 degrees of freedom: mean 63, standard deviation 11.2; the
  // limit is 5 of them away.
  constexpr int kSize = 64, kEpochs = 6400;
  constexpr double kMaxChiSquare = 63 + 5 * 11.2;
  for (const int64_t element : {0, 1, 31, 63}) {
    std::array<int, kSize> counts{};
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      ++counts[static_cast<size_t>(Permutation(kSize, 5, epoch)(element))];
    }
    double chi_square = 0;
    for (const int count : counts) {
      const double expected = double{kEpochs} / kSize;
      chi_square += (count - expected) * (count - expected) / expected;
    }
    EXPECT_LT(chi_square, kMaxChiSquare) << "element " << element;
  }
}

TEST(Permutation, NeighboursDoNotStayNeighbours) {
  // In a random order of n, the number of i with order(i + 1) == order(i) + 1 is Poisson(1).
  constexpr int kMaxFollowers = 10;
  const auto order = images(10000, 2, 0);
  int followers = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) followers += order[i + 1] == order[i] + 1 ? 1 : 0;
  EXPECT_LE(followers, kMaxFollowers);
}

TEST(Permutation, RefusesNoElementsAndElementsOutside) {
  EXPECT_THROW(Permutation(0, 1, 1), Error);
  const Permutation order(3, 1, 1);
  EXPECT_THROW(order(-1), Error);
  EXPECT_THROW(order(3), Error);
}

}  // namespace
}  // namespace spillway::data
