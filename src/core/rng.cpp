#include "spillway/core/rng.h"

#include <cmath>
#include <numbers>

#include "spillway/core/error.h"

namespace spillway {
namespace {
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;
}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * c[0];
    const uint64_t p1 = uint64_t{kMultiplier1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += kWeyl0;
    k[1] += kWeyl1;
  }
  return c;
}

uint64_t Rng::at(uint64_t i) const {
  const auto block =
      philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                  static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                 {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return uint64_t{block[1]} << 32 | block[0];
}

double Rng::uniform_at(uint64_t i) const { return static_cast<double>(at(i) >> 11) * 0x1.0p-53; }

double Rng::normal_at(uint64_t i) const {
  const uint64_t word = at(i);
  const double u1 = (static_cast<double>(word >> 32) + 1.0) * 0x1.0p-32;  // (0, 1]
  const double u2 = static_cast<double>(word & 0xffffffffU) * 0x1.0p-32;
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
}

uint64_t Rng::below(uint64_t n) {
  SPILLWAY_CHECK(n > 0, "a random integer below 0");
  // Lemire's multiply-shift: bias below 2^-64 * n, no rejection, one draw.
  return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
}

}  // namespace spillway
