#include "spillway/data/permutation.h"

#include <algorithm>
#include <bit>

#include "spillway/core/error.h"
#include "spillway/core/rng.h"

namespace spillway::data {
namespace {
// A round halves the distance from a uniform order for a given card at best; a few times
// log2(n) rounds, and some for small n, make orders that tests cannot tell from random ones.
constexpr int kRoundsPerBit = 4;
constexpr int kExtraRounds = 16;
// Keeps these draws apart from other users of the run's seed.
constexpr uint64_t kOrderTag = 0x6f72646572ULL;
}  // namespace

Permutation::Permutation(int64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
  SPILLWAY_CHECK(n >= 1, "permutation of ", n, " elements");
  const int bits = std::bit_width(static_cast<uint64_t>(n - 1));
  const int num_rounds = kExtraRounds + kRoundsPerBit * bits;
  Rng rng(mix64(seed ^ kOrderTag), epoch);
  rounds_.reserve(static_cast<size_t>(num_rounds));
  for (int r = 0; r < num_rounds; ++r) {
    const auto pair_sum = static_cast<int64_t>(rng.below(static_cast<uint64_t>(n)));
    rounds_.push_back({pair_sum, rng.next()});
  }
}

int64_t Permutation::operator()(int64_t i) const {
  SPILLWAY_CHECK(0 <= i && i < n_, "element ", i, " of a permutation of ", n_);
  int64_t x = i;
  for (const Round& round : rounds_) {
    const int64_t partner = round.pair_sum >= x ? round.pair_sum - x : round.pair_sum - x + n_;
    // Both members of the pair must ask the same question.
    const auto name = static_cast<uint64_t>(std::max(x, partner));
    if ((mix64(name + round.key) & 1U) != 0) x = partner;
  }
  return x;
}

}  // namespace spillway::data
