#include "spillway/core/math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "support/throws.h"

namespace spillway {
namespace {

using Wide = __int128;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

static_assert(ceil_div(7, 2) == 4 && round_up(7, 4) == 8 && round_down(7, 4) == 4);
static_assert(checked_mul(6, 7) == 42);

// Small numbers of both signs, and the last ones that fit.
std::vector<int64_t> dividends() {
  std::vector<int64_t> values = {kMin, kMin + 1, -(int64_t{1} << 53), kMax - 1, kMax};
  for (int64_t a = -70; a <= 70; ++a) values.push_back(a);
  return values;
}

class Divisor : public ::testing::TestWithParam<int64_t> {};

// Found by its definition: the least q with q * b >= a.
TEST_P(Divisor, CeilDivIsTheLeastQuotientThatCovers) {
  const Wide b = GetParam();
  for (const int64_t a : dividends()) {
    const Wide q = ceil_div(a, GetParam());
    EXPECT_GE(q * b, a) << a;
    EXPECT_LT((q - 1) * b, a) << a;
  }
}

TEST_P(Divisor, RoundUpIsTheLeastMultipleNotBelowOrThrows) {
  const Wide multiple = GetParam();
  for (const int64_t a : dividends()) {
    Wide wanted = Wide{a} - Wide{a} % multiple;
    if (wanted < a) wanted += multiple;
    if (wanted > kMax || wanted < kMin) {
      EXPECT_THROW(round_up(a, GetParam()), Error) << a;
    } else {
      EXPECT_TRUE(round_up(a, GetParam()) == wanted) << a;
    }
  }
}

TEST_P(Divisor, RoundDownIsTheGreatestMultipleNotAbove) {
  const Wide multiple = GetParam();
  for (const int64_t a : dividends()) {
    if (a < 0) continue;
    const Wide down = round_down(a, GetParam());
    EXPECT_TRUE(down % multiple == 0 && down <= a && down + multiple > a) << a;
  }
}

INSTANTIATE_TEST_SUITE_P(IntegerMath, Divisor,
                         ::testing::Values(1, 2, 3, 7, 8, 64, 128, (int64_t{1} << 62) + 1, kMax),
                         ::testing::PrintToStringParamName());

TEST(IntegerMath, PowersOfTwo) {
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t power = int64_t{1} << bit;
    EXPECT_TRUE(is_power_of_two(power)) << power;
    EXPECT_EQ(is_power_of_two(power - 1), power == 2) << power;
    EXPECT_EQ(is_power_of_two(power + 1), power == 1) << power;
    EXPECT_FALSE(is_power_of_two(-power)) << power;
  }
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_FALSE(is_power_of_two(kMin));
  EXPECT_FALSE(is_power_of_two(kMax));
}

TEST(IntegerMath, CheckedMulIsExactOrThrows) {
  const std::vector<int64_t> values = {kMin,        kMin + 1,
                                       -3037000500,  // beyond -sqrt(2^63)
                                       -2,          -1,
                                       0,           1,
                                       2,
                                       3037000499,  // the last square that fits
                                       3037000500,  int64_t{1} << 32,
                                       kMax - 1,    kMax};
  int overflows = 0;
  for (const int64_t a : values) {
    for (const int64_t b : values) {
      const Wide product = Wide{a} * b;
      if (product > kMax || product < kMin) {
        ++overflows;
        EXPECT_THROW(checked_mul(a, b), Error) << a << " * " << b;
      } else {
        EXPECT_TRUE(checked_mul(a, b) == product) << a << " * " << b;
      }
    }
  }
  EXPECT_GT(overflows, 0);
}

TEST(IntegerMath, OverflowNamesBothFactors) {
  EXPECT_TRUE(testing::throws_with<Error>([] { checked_mul(4294967296, 2147483648); },
                                          {"4294967296 * 2147483648 overflows 64 bits"}));
}

}  // namespace
}  // namespace spillway
