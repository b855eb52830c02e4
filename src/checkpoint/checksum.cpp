#include "checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "spillway/core/math.h"
#include "spillway/core/rng.h"

namespace spillway::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian");

// Odd: multiplication is a bijection.
constexpr uint64_t kWordFactor = 0xd6e8feb86659fd93ULL;
constexpr uint64_t kLaneFactor = 0x9fb21c651e98df25ULL;

uint64_t fold(uint64_t hash, uint64_t word) { return mix64(hash ^ word) * kLaneFactor; }

}  // namespace

void Checksum::start_chunk() {
  for (size_t i = 0; i < kLanes; ++i) lanes_[i] = mix64(i + 1);
  chunk_bytes_ = 0;
}

void Checksum::take_blocks(const std::byte* data, size_t blocks) {
  std::array<uint64_t, kLanes> lanes = lanes_;  // in registers: `data` may be anybody's memory
  for (size_t block = 0; block < blocks; ++block, data += kBlockBytes) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), data, kBlockBytes);
    for (size_t i = 0; i < kLanes; ++i)
      lanes[i] = std::rotl(lanes[i] + words[i] * kWordFactor, 31) * kLaneFactor;
  }
  lanes_ = lanes;
}

uint64_t Checksum::chunk_digest() const {
  Checksum padded = *this;
  if (rest_bytes_ > 0) {
    std::fill(padded.rest_.begin() + static_cast<std::ptrdiff_t>(rest_bytes_), padded.rest_.end(),
              std::byte{0});
    padded.take_blocks(padded.rest_.data(), 1);
  }
  uint64_t hash = 0;
  for (const uint64_t lane : padded.lanes_) hash = fold(hash, lane);
  return fold(hash, static_cast<uint64_t>(chunk_bytes_));
}

uint64_t Checksum::of_chunk(std::span<const std::byte> chunk) {
  Checksum state;
  const size_t blocks = chunk.size() / kBlockBytes;
  state.take_blocks(chunk.data(), blocks);
  state.rest_bytes_ = chunk.size() - blocks * kBlockBytes;
  std::memcpy(state.rest_.data(), chunk.data() + blocks * kBlockBytes, state.rest_bytes_);
  state.chunk_bytes_ = static_cast<int64_t>(chunk.size());
  return state.chunk_digest();
}

void Checksum::update(std::span<const std::byte> bytes) {
  total_bytes_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const size_t room = static_cast<size_t>(kChunkBytes - chunk_bytes_);
    size_t count = std::min(room, bytes.size());
    if (rest_bytes_ > 0 || count < kBlockBytes) {
      count = std::min(count, kBlockBytes - rest_bytes_);
      std::memcpy(rest_.data() + rest_bytes_, bytes.data(), count);
      rest_bytes_ += count;
      if (rest_bytes_ == kBlockBytes) {
        take_blocks(rest_.data(), 1);
        rest_bytes_ = 0;
      }
    } else {
      count -= count % kBlockBytes;
      take_blocks(bytes.data(), count / kBlockBytes);
    }
    chunk_bytes_ += static_cast<int64_t>(count);
    bytes = bytes.subspan(count);
    if (chunk_bytes_ == kChunkBytes) {
      folded_ = fold(folded_, chunk_digest());
      start_chunk();
    }
  }
}

uint64_t Checksum::digest() const {
  const uint64_t hash = chunk_bytes_ > 0 ? fold(folded_, chunk_digest()) : folded_;
  return fold(hash, static_cast<uint64_t>(total_bytes_));
}

uint64_t checksum_of(std::span<const std::byte> bytes, int num_threads) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  const int64_t chunks = ceil_div(size, Checksum::kChunkBytes);
  std::vector<uint64_t> digests(static_cast<size_t>(chunks));
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * Checksum::kChunkBytes;
    digests[static_cast<size_t>(chunk)] = Checksum::of_chunk(
        bytes.subspan(static_cast<size_t>(begin),
                      static_cast<size_t>(std::min(Checksum::kChunkBytes, size - begin))));
  }
  uint64_t hash = 0;
  for (const uint64_t digest : digests) hash = fold(hash, digest);
  return fold(hash, static_cast<uint64_t>(size));
}

std::string checksum_text(uint64_t checksum) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = kDigits[(checksum >> (60 - 4 * i)) & 15];
  return text;
}

}  // namespace spillway::checkpoint
