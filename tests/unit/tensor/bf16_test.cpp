// Conversion to bfloat16 against its definition, worked out in double, where the distances between
// a float and its neighbours in bf16 are exact.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "spillway/core/rng.h"
#include "spillway/tensor/dtype.h"

namespace spillway {
namespace {

constexpr uint32_t kSign = 0x8000, kInfinity = 0x7f80, kQuiet = 0x0040;

static_assert(bf16(1.0F).bits == 0x3f80 && static_cast<float>(bf16(-2.5F)) == -2.5F);

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

/// The magnitude of a pattern of sign 0; infinity counts as 2^128, where the next number would be.
double magnitude(uint32_t pattern) {
  return pattern == kInfinity ? 0x1p128 : static_cast<double>(from_bits(pattern << 16));
}

/// Round to nearest, ties to the even pattern, of a number that is no NaN.
uint32_t nearest_pattern(float value) {
  const uint32_t sign = std::signbit(value) ? kSign : 0;
  if (std::isinf(value)) return sign | kInfinity;
  const double wanted = std::abs(static_cast<double>(value));
  const uint32_t below = std::bit_cast<uint32_t>(std::abs(value)) >> 16;
  const double down = wanted - magnitude(below), up = magnitude(below + 1) - wanted;
  const bool take_upper = up < down || (up == down && below % 2 == 1);
  return sign | (below + (take_upper ? 1 : 0));
}

TEST(Bf16, EveryPatternSurvivesTheWayThroughFloat) {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    const float value = from_bits(pattern << 16);
    bf16 number;
    number.bits = static_cast<uint16_t>(pattern);
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(number)), pattern << 16);
    const uint32_t wanted = std::isnan(value) ? pattern | kQuiet : pattern;
    ASSERT_EQ(bf16(value).bits, wanted) << std::hex << pattern;
  }
}

// Every pair of neighbours; beside, at and between them, up to one unit from the tie.
TEST(Bf16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    if (std::isnan(from_bits(pattern << 16))) continue;
    for (const uint32_t rest : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = from_bits(pattern << 16 | rest);
      if (std::isnan(value)) continue;
      ASSERT_EQ(bf16(value).bits, nearest_pattern(value)) << std::hex << pattern << ' ' << rest;
    }
  }
}

TEST(Bf16, RoundsRandomFloats) {
  const Rng rng(17);
  for (uint64_t i = 0; i < 1'000'000; ++i) {
    const float value = from_bits(static_cast<uint32_t>(rng.at(i)));  // all exponents alike
    if (std::isnan(value)) continue;
    ASSERT_EQ(bf16(value).bits, nearest_pattern(value)) << std::hexfloat << value;
  }
}

TEST(Bf16, EveryNanStaysANanOfItsSign) {
  for (uint32_t high = 0x7f80; high <= 0x7fff; ++high) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0xffffU}) {
      if (high == kInfinity && low == 0) continue;  // infinity itself
      for (const uint32_t sign : {0U, kSign}) {
        const bf16 number(from_bits((sign | high) << 16 | low));
        ASSERT_TRUE(std::isnan(static_cast<float>(number))) << std::hex << high << ' ' << low;
        ASSERT_EQ(number.bits, sign | high | kQuiet);
      }
    }
  }
}

struct EdgeCase {
  const char* name;
  float value;
  uint16_t bits;
};

class Bf16Edge : public ::testing::TestWithParam<EdgeCase> {};

// Written by hand, so that the reference above is checked too.
TEST_P(Bf16Edge, HasTheKnownBits) {
  const auto& [name, value, bits] = GetParam();
  EXPECT_EQ(bf16(value).bits, bits);
  EXPECT_EQ(bf16(-value).bits, bits | kSign);
  EXPECT_EQ(nearest_pattern(value), bits);
}

INSTANTIATE_TEST_SUITE_P(
    DType, Bf16Edge,
    ::testing::Values(EdgeCase{"Zero", 0.0F, 0x0000}, EdgeCase{"One", 1.0F, 0x3f80},
                      EdgeCase{"TieToEvenBelow", 1.0F + 0x1p-8F, 0x3f80},
                      EdgeCase{"TieToEvenAbove", 1.0F + 0x3p-8F, 0x3f82},
                      EdgeCase{"JustAboveATie", 1.0F + 0x1p-8F + 0x1p-23F, 0x3f81},
                      EdgeCase{"Largest", 0x1.fep127F, 0x7f7f},
                      EdgeCase{"LargestFloatIsInfinity", std::numeric_limits<float>::max(), 0x7f80},
                      EdgeCase{"JustBelowTheTieToInfinity", 0x1.fefffep127F, 0x7f7f},
                      EdgeCase{"Infinity", std::numeric_limits<float>::infinity(), 0x7f80},
                      EdgeCase{"SmallestNormal", 0x1p-126F, 0x0080},
                      EdgeCase{"LargestDenormal", 0x1.fcp-127F, 0x007f},
                      EdgeCase{"SmallestDenormal", 0x1p-133F, 0x0001},
                      EdgeCase{"HalfOfIt", 0x1p-134F, 0x0000},
                      EdgeCase{"SmallestFloat", 0x1p-149F, 0x0000}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway
