#include "spillway/metrics/records.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "spillway/core/rng.h"

namespace spillway::metrics {
namespace {

/// The shortest decimal form of a double.
std::string digits_of(double value) {
  std::array<char, 32> digits;
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), written.ptr};
}

struct Digits {
  float value;
  const char* text;
};
class ShortestDigits : public ::testing::TestWithParam<Digits> {};
TEST_P(ShortestDigits, AreThoseOfTheFloat) {
  EXPECT_EQ(digits_of(shortest(GetParam().value)), GetParam().text);
}
INSTANTIATE_TEST_SUITE_P(Values, ShortestDigits,
                         ::testing::Values(Digits{0.0f, "0"}, Digits{-0.0f, "-0"},
                                           Digits{0.1f, "0.1"}, Digits{-2.5f, "-2.5"},
                                           Digits{3e-3f, "0.003"}, Digits{1.0f / 3, "0.33333334"},
                                           Digits{16777216.0f, "16777216"}, Digits{1e-45f, "1e-45"},
                                           Digits{5.0820303f, "5.0820303"}));

TEST(Shortest, ReadsBackAsTheSameFloatForAnyBits) {
  Rng rng(1);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(rng.next()));
    if (std::isnan(value)) continue;
    const double wide = shortest(value);
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(wide)), std::bit_cast<uint32_t>(value))
        << value;
    ASSERT_LE(digits_of(wide).size(), 15U) << value;  // sign, 9 digits, point, exponent
  }
}

TEST(Shortest, KeepsNanAndInfinity) {
  EXPECT_TRUE(std::isnan(shortest(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(shortest(std::numeric_limits<float>::infinity()),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(shortest(-std::numeric_limits<float>::infinity()),
            -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace spillway::metrics
