#pragma once
// The checksum of checkpoint files: 64 bits, made to find damage (no defence against forgery).
//
// A file is cut into chunks of 4 MiB. In a chunk (padded with zero bytes to a multiple of 64), word
// i of 8 bytes, little endian, goes into lane i mod 8:
//   lane = rotl(lane + word * kWordFactor, 31) * kLaneFactor.
// The lanes, which start at mix64(1) ... mix64(8), and then the chunk's length are folded with
//   h = mix64(h ^ x) * kLaneFactor,  h = 0 at the start.
// The file's checksum folds the chunks' in the same way, and then the number of bytes. Every step
// is a bijection of the word that it takes in, so two files that differ within one word of 8 bytes
// never have the same checksum; two multiplications a word keep a few flipped bits in several words
// from undoing each other; other files collide with a chance of about 2^-64. Chunks are
// independent: a file is verified by as many threads as there are.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spillway::checkpoint {

inline constexpr const char* kChecksumName = "spillway-lanes64-4MiB";

/// Of bytes that come piece by piece, however they are cut.
class Checksum {
 public:
  static constexpr int64_t kChunkBytes = int64_t{4} << 20;

  Checksum() { start_chunk(); }
  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;
  /// What a chunk adds to the digest: at most kChunkBytes.
  static uint64_t of_chunk(std::span<const std::byte> chunk);

 private:
  static constexpr size_t kLanes = 8;
  static constexpr size_t kBlockBytes = kLanes * sizeof(uint64_t);

  void start_chunk();
  void take_blocks(const std::byte* data, size_t blocks);
  uint64_t chunk_digest() const;

  std::array<uint64_t, kLanes> lanes_{};
  std::array<std::byte, kBlockBytes> rest_{};  // the bytes of an unfinished block
  size_t rest_bytes_ = 0;
  int64_t chunk_bytes_ = 0;  // taken of the chunk, the rest included
  int64_t total_bytes_ = 0;
  uint64_t folded_ = 0;  // the finished chunks
};

/// Of bytes at hand, by `num_threads` threads.
uint64_t checksum_of(std::span<const std::byte> bytes, int num_threads = 1);

/// 16 hexadecimal digits.
std::string checksum_text(uint64_t checksum);

}  // namespace spillway::checkpoint
