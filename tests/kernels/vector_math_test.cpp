#include "../../src/kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "../../src/kernels/cpu/convert.h"

namespace spillway::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// What attention and softmax build on; a correctly rounded float is good to 6e-8.
constexpr double kExpTolerance = 2e-7;

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

/// The largest relative error over every `stride`-th float of [low, high], both of one sign.
double worst_error(float low, float high, uint32_t stride) {
  double worst = 0.0;
  const uint32_t end = std::max(std::bit_cast<uint32_t>(low), std::bit_cast<uint32_t>(high));
  for (uint32_t bits = std::min(std::bit_cast<uint32_t>(low), std::bit_cast<uint32_t>(high));
       bits <= end; bits += stride) {
    const double wanted = std::exp(static_cast<double>(from_bits(bits)));
    const double error = std::abs(static_cast<double>(fast_exp(from_bits(bits))) - wanted) / wanted;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TEST(FastExp, RelativeErrorOverPositiveFloats) {
  EXPECT_LE(worst_error(0.0f, 88.0f, 101), kExpTolerance);
}

TEST(FastExp, RelativeErrorOverNegativeFloats) {
  EXPECT_LE(worst_error(-0.0f, -87.0f, 101), kExpTolerance);
}

TEST(FastExp, EveryFloatNearTheBordersOfTheReduction) {
  // Half multiples of ln 2: where n changes and |r| is largest.
  for (int n = 1; n < 127; n += 7) {
    const float border = static_cast<float>((n + 0.5) * 0.6931471805599453);
    const uint32_t bits = std::bit_cast<uint32_t>(border);
    EXPECT_LE(worst_error(from_bits(bits - 50), from_bits(bits + 50), 1), kExpTolerance) << n;
  }
}

TEST(FastExp, ExactAtZero) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
}

TEST(FastExp, VanishesBelow) {
  for (const float x : {-kInfinity, -std::numeric_limits<float>::max(), -1e4f, -104.0f, -87.4f}) {
    EXPECT_EQ(fast_exp(x), 0.0f) << x;
    EXPECT_FALSE(std::signbit(fast_exp(x))) << x;
  }
}

TEST(FastExp, OverflowsToInfinity) {
  for (const float x : {kInfinity, std::numeric_limits<float>::max(), 1e4f, 200.0f, 88.73f}) {
    EXPECT_EQ(fast_exp(x), kInfinity) << x;
  }
  EXPECT_LT(fast_exp(88.72f), kInfinity);
}

TEST(FastExp, KeepsNaN) {
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST(FastExp, VectorLoopAndScalarCallAgreeBitForBit) {
  std::vector<float> x(1003), y(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -95.0f + 0.19f * static_cast<float>(i);
  for (size_t i = 0; i < x.size(); ++i) y[i] = fast_exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    const volatile float alone = x[i];
    EXPECT_EQ(y[i], fast_exp(alone)) << x[i];
  }
}

TEST(Sigmoid, LimitsAndSymmetry) {
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(200.0f), 1.0f);
  EXPECT_EQ(sigmoid(-200.0f), 0.0f);
  EXPECT_EQ(silu(-200.0f), 0.0f);
  for (float x = 0.1f; x < 20.0f; x += 0.37f) {
    EXPECT_NEAR(sigmoid(x) + sigmoid(-x), 1.0f, 2e-7f) << x;
    EXPECT_NEAR(silu(x), x / (1.0 + std::exp(-static_cast<double>(x))), 4e-7 * x) << x;
  }
}

TEST(Convert, StoreRoundsAsTheTypeDoes) {
  for (uint64_t bits = 0; bits <= 0xffffffffULL; bits += 9973) {
    const float value = from_bits(static_cast<uint32_t>(bits));
    bf16 stored;
    store(stored, value);
    ASSERT_EQ(stored.bits, bf16(value).bits) << bits;
    const float rounded = round_to<bf16>(value);
    const float wanted = static_cast<float>(bf16(value));
    ASSERT_EQ(std::memcmp(&rounded, &wanted, 4), 0) << bits;
  }
}

}  // namespace
}  // namespace spillway::kernels::cpu
