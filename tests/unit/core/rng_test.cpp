#include "spillway/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "support/throws.h"

namespace spillway {
namespace {

constexpr int64_t kDraws = 400'000;
// Statistics of fixed seeds: either always within this many standard errors or never. By chance
// one statistic in two million is not.
constexpr double kStandardErrors = 5.0;

struct PhiloxCase {
  const char* name;
  std::array<uint32_t, 4> counter;
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 4> wanted;
};

class PhiloxKnownAnswer : public ::testing::TestWithParam<PhiloxCase> {};

uint64_t join(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

TEST_P(PhiloxKnownAnswer, Block) {
  EXPECT_EQ(philox4x32(GetParam().counter, GetParam().key), GetParam().wanted);
}

// How seed, stream and index enter a block is part of every saved run: pinned here.
TEST_P(PhiloxKnownAnswer, RngWord) {
  const auto& [name, counter, key, wanted] = GetParam();
  const Rng rng(join(key[0], key[1]), join(counter[2], counter[3]));
  EXPECT_EQ(rng.at(join(counter[0], counter[1])), join(wanted[0], wanted[1]));
}

// The known answers of philox4x32-10 that its authors publish with Random123.
INSTANTIATE_TEST_SUITE_P(
    Rng, PhiloxKnownAnswer,
    ::testing::Values(
        PhiloxCase{"Zeros", {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        PhiloxCase{"Ones",
                   {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                   {0xffffffff, 0xffffffff},
                   {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        PhiloxCase{"DigitsOfPi",
                   {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                   {0xa4093822, 0x299f31d0},
                   {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}),
    [](const auto& test) { return std::string(test.param.name); });

// The first outputs of the SplitMix64 generator of seed 0: mix64 of multiples of its increment.
TEST(Mix64, KnownAnswers) {
  constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15ULL;
  EXPECT_EQ(mix64(kIncrement), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(mix64(2 * kIncrement), 0x6e789e6aa1b965f4ULL);
  EXPECT_EQ(mix64(3 * kIncrement), 0x06c45d188009454fULL);
}

uint64_t inverse_of_odd(uint64_t a) {
  uint64_t x = a;  // right in the lowest 3 bits; each Newton step doubles them
  for (int i = 0; i < 5; ++i) x *= 2 - a * x;
  return x;
}

uint64_t undo_xor_shift(uint64_t y, int shift) {
  uint64_t x = y;
  for (int done = shift; done < 64; done += shift) x = y ^ (x >> shift);
  return x;
}

TEST(Mix64, CanBeUndone) {
  const Rng rng(1);
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t word = i < 4 ? i - 2 : rng.at(i);
    uint64_t x = undo_xor_shift(mix64(word), 31) * inverse_of_odd(0x94d049bb133111ebULL);
    x = undo_xor_shift(x, 27) * inverse_of_odd(0xbf58476d1ce4e5b9ULL);
    ASSERT_EQ(undo_xor_shift(x, 30), word);
  }
}

TEST(RngStream, SequentialUseReadsTheSameWords) {
  const Rng indexed(7, 3);
  Rng rng(7, 3);
  EXPECT_EQ(rng.next(), indexed.at(0));
  EXPECT_EQ(rng.uniform(), indexed.uniform_at(1));
  EXPECT_EQ(rng.normal(), indexed.normal_at(2));
  rng.below(10);
  EXPECT_EQ(rng.next(), indexed.at(4));
  EXPECT_EQ(rng.at(0), indexed.at(0));  // whatever was drawn before
}

TEST(RngStream, CopyGoesOnFromTheSamePlace) {
  Rng rng(7);
  rng.next();
  Rng copy = rng;
  const uint64_t word = rng.next();
  EXPECT_EQ(copy.next(), word);
  EXPECT_NE(rng.next(), word);
}

// A few roundings of double in log, sqrt, cos and their arguments, the result below 6.67.
constexpr double kNormalTolerance = 1e-14;

TEST(RngStream, DrawsAreTheDocumentedFunctionsOfTheWord) {
  const Rng rng(21, 4);
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t word = rng.at(i);
    EXPECT_EQ(rng.uniform_at(i), std::ldexp(static_cast<double>(word >> 11), -53));
    const long double u1 = std::ldexp(static_cast<long double>((word >> 32) + 1), -32);
    const long double u2 = std::ldexp(static_cast<long double>(word & 0xffffffffU), -32);
    const long double angle = 2.0L * std::numbers::pi_v<long double> * u2;
    const long double wanted = std::sqrt(-2.0L * std::log(u1)) * std::cos(angle);
    EXPECT_NEAR(rng.normal_at(i), static_cast<double>(wanted), kNormalTolerance);
  }
}

struct StreamCase {
  const char* name;
  uint64_t seed, stream;
};

class Distribution : public ::testing::TestWithParam<StreamCase> {
 protected:
  const Rng rng_{GetParam().seed, GetParam().stream};
};

void expect_mean(double sum, double wanted, double deviation, const char* what) {
  const double error = deviation / std::sqrt(static_cast<double>(kDraws));
  EXPECT_NEAR(sum / kDraws, wanted, kStandardErrors * error) << what;
}

TEST_P(Distribution, UniformMomentsAndRange) {
  double first = 0.0, second = 0.0, least = 1.0, most = 0.0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const double u = rng_.uniform_at(static_cast<uint64_t>(i));
    first += u;
    second += u * u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  EXPECT_GE(least, 0.0);
  EXPECT_LT(most, 1.0);
  EXPECT_LT(least, 1e-4);  // a chance of e^-40 each
  EXPECT_GT(most, 1.0 - 1e-4);
  expect_mean(first, 0.5, std::sqrt(1.0 / 12), "mean");
  expect_mean(second, 1.0 / 3, std::sqrt(4.0 / 45), "mean square");
}

// E x^2k = (2k - 1)!!, hence the variances 1, 2, 15, 96 of x, x^2, x^3, x^4.
TEST_P(Distribution, NormalMomentsAndTails) {
  std::array<double, 4> sums{};
  double beyond_two = 0.0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const double x = rng_.normal_at(static_cast<uint64_t>(i));
    ASSERT_LE(std::abs(x), 6.67);  // sqrt(2 * 32 * ln 2)
    sums[0] += x;
    sums[1] += x * x;
    sums[2] += x * x * x;
    sums[3] += x * x * x * x;
    beyond_two += std::abs(x) > 2.0 ? 1.0 : 0.0;
  }
  expect_mean(sums[0], 0.0, 1.0, "mean");
  expect_mean(sums[1], 1.0, std::sqrt(2.0), "variance");
  expect_mean(sums[2], 0.0, std::sqrt(15.0), "third moment");
  expect_mean(sums[3], 3.0, std::sqrt(96.0), "fourth moment");
  const double tail = std::erfc(std::numbers::sqrt2);
  expect_mean(beyond_two, tail, std::sqrt(tail * (1.0 - tail)), "beyond two deviations");
}

TEST_P(Distribution, EveryBitIsFair) {
  std::array<double, 64> ones{};
  for (int64_t i = 0; i < kDraws; ++i) {
    const uint64_t word = rng_.at(static_cast<uint64_t>(i));
    for (size_t bit = 0; bit < 64; ++bit) ones[bit] += static_cast<double>(word >> bit & 1U);
  }
  for (const double sum : ones) expect_mean(sum, 0.5, 0.5, "bit");
}

INSTANTIATE_TEST_SUITE_P(Rng, Distribution,
                         ::testing::Values(StreamCase{"Zero", 0, 0}, StreamCase{"Small", 1234, 1},
                                           StreamCase{"Large", ~uint64_t{0}, ~uint64_t{0}}),
                         [](const auto& test) { return std::string(test.param.name); });

class Below : public ::testing::TestWithParam<uint64_t> {};

// Pearson's statistic of k cells: mean k - 1, variance 2 (k - 1), a long right tail for few cells.
TEST_P(Below, UniformOverItsRange) {
  const uint64_t n = GetParam();
  std::vector<int64_t> hits(n, 0);
  Rng rng(99, n);
  for (int64_t i = 0; i < kDraws; ++i) {
    const uint64_t draw = rng.below(n);
    ASSERT_LT(draw, n);
    ++hits[draw];
  }
  const double wanted = static_cast<double>(kDraws) / static_cast<double>(n);
  double statistic = 0.0;
  for (const int64_t count : hits) {
    const double off = static_cast<double>(count) - wanted;
    statistic += off * off / wanted;
  }
  const double freedom = static_cast<double>(n - 1);
  EXPECT_LT(statistic, freedom + 10.0 + kStandardErrors * std::sqrt(2.0 * freedom));
  EXPECT_GE(statistic, freedom - kStandardErrors * std::sqrt(2.0 * freedom));
}

INSTANTIATE_TEST_SUITE_P(Rng, Below, ::testing::Values(1, 2, 3, 7, 64, 1000),
                         ::testing::PrintToStringParamName());

TEST(RngBelow, LargeRangesAreFilled) {
  for (const uint64_t n : {uint64_t{1} << 63, (uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
    Rng rng(5);
    uint64_t least = ~uint64_t{0}, most = 0;
    for (int i = 0; i < 1000; ++i) {
      const uint64_t draw = rng.below(n);
      ASSERT_LT(draw, n);
      least = std::min(least, draw);
      most = std::max(most, draw);
    }
    EXPECT_LT(least, n / 50) << n;  // a chance of 2e-9 each
    EXPECT_GT(most, n - n / 50) << n;
  }
}

TEST(RngBelow, NothingIsBelowZero) {
  EXPECT_TRUE(testing::throws_with<Error>([] { Rng(1).below(0); }, {"a random integer below 0"}));
}

struct PairCase {
  const char* name;
  StreamCase a, b;
  uint64_t lag;  // draw i of a goes with draw i + lag of b
};

class StreamPair : public ::testing::TestWithParam<PairCase> {};

TEST_P(StreamPair, Uncorrelated) {
  const auto& [name, first, second, lag] = GetParam();
  const Rng a(first.seed, first.stream), b(second.seed, second.stream);
  double product = 0.0;
  int64_t differing_bits = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    product += (a.uniform_at(i) - 0.5) * (b.uniform_at(i + lag) - 0.5);
    differing_bits += __builtin_popcountll(a.at(i) ^ b.at(i + lag));
  }
  expect_mean(product, 0.0, 1.0 / 12, "covariance");
  expect_mean(static_cast<double>(differing_bits), 32.0, 4.0, "differing bits");
}

INSTANTIATE_TEST_SUITE_P(
    Rng, StreamPair,
    ::testing::Values(PairCase{"NextStream", {"", 1, 0}, {"", 1, 1}, 0},
                      PairCase{"NextSeed", {"", 1, 0}, {"", 2, 0}, 0},
                      PairCase{"SeedAndStreamSwapped", {"", 3, 8}, {"", 8, 3}, 0},
                      PairCase{"HighHalfOfStream", {"", 1, 1}, {"", 1, uint64_t{1} << 32}, 0},
                      PairCase{"HighHalfOfSeed", {"", 1, 1}, {"", uint64_t{1} << 32, 1}, 0},
                      PairCase{"NextDraw", {"", 1, 0}, {"", 1, 0}, 1},
                      PairCase{"HighHalfOfIndex", {"", 1, 0}, {"", 1, 0}, uint64_t{1} << 32}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway
