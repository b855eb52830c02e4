#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A draw is a pure function of (key, counter), so every
// rank can compute any element of any stream without drawing the ones before it.

#include <array>
#include <cstdint>

namespace spillway {

/// One Philox4x32-10 block: four 32-bit words of counter `c` under key `k`.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k);

/// 64-bit hash of a word, bijective (the finaliser of SplitMix64, Steele et al. 2014).
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

/// One step of a hash of a list of words: from the state of those before to the state with `value`
/// added; start with any state. Bijective in either argument.
constexpr uint64_t hash_chain(uint64_t state, uint64_t value) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  // the increment of SplitMix64
  return mix64(state + (value + 1) * kGolden);
}

/// A stream of random numbers named by (seed, stream). Copyable. Draw i is one word whatever is
/// made of it: at(i), uniform_at(i) and normal_at(i) of one stream depend on each other. The `_at`
/// calls never change state, so threads may share a const Rng.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  /// The i-th 64-bit word of the stream.
  uint64_t at(uint64_t i) const;
  /// The i-th draw of the uniform distribution on [0, 1), 53 bits.
  double uniform_at(uint64_t i) const;
  /// The i-th draw of the standard normal distribution (Box, Muller 1958, the cosine branch on two
  /// 32-bit halves: never beyond +-6.67).
  double normal_at(uint64_t i) const;

  /// Sequential use: the next draw of the stream.
  uint64_t next() { return at(position_++); }
  double uniform() { return uniform_at(position_++); }
  double normal() { return normal_at(position_++); }
  /// The next draw as a uniform integer in [0, n). Throws Error when n is 0.
  uint64_t below(uint64_t n);

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t position_ = 0;
};

}  // namespace spillway
