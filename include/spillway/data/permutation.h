#pragma once

#include <cstdint>
#include <vector>

namespace spillway::data {

/// A seeded bijection of [0, n), computed element by element: nothing of size n is stored. The
/// swap-or-not shuffle (Hoang, Morris, Rogaway, "An enciphering scheme based on a card shuffle",
/// CRYPTO 2012): in each round x is paired with K - x mod n, and one hashed bit of the pair says
/// whether the two change places. Good for small n as well as large, without cycle walking.
class Permutation {
 public:
  /// n at least 1. Another `epoch` of the same seed is another, unrelated order.
  Permutation(int64_t n, uint64_t seed, uint64_t epoch);

  int64_t size() const { return n_; }
  /// The image of i, 0 <= i < n.
  int64_t operator()(int64_t i) const;

 private:
  struct Round {
    int64_t pair_sum;  // K: x and K - x mod n are partners
    uint64_t key;      // of the hash that decides for the pair
  };

  int64_t n_;
  std::vector<Round> rounds_;
};

}  // namespace spillway::data
