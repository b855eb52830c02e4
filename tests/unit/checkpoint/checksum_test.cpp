#include "checksum.h"

#include <gtest/gtest.h>

#include <set>

#include "spillway/core/rng.h"

namespace spillway::checkpoint {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(mix64(i) >> 9);
  return bytes;
}

constexpr size_t kChunk = static_cast<size_t>(Checksum::kChunkBytes);

// The algorithm is part of the file format. Computed by another program, from its description.
TEST(Checksum, IsWhatItWasWhenTheFormatWasMade) {
  EXPECT_EQ(checksum_text(checksum_of(some_bytes(0))), "0000000000000000");
  EXPECT_EQ(checksum_text(checksum_of(some_bytes(1))), "4dfe923c98a8705d");
  EXPECT_EQ(checksum_text(checksum_of(some_bytes(1000))), "a141db5433ceeda2");
  EXPECT_EQ(checksum_text(checksum_of(some_bytes(kChunk + 3))), "52c41089a9214b71");
}

class ChecksumSizes : public ::testing::TestWithParam<size_t> {};

TEST_P(ChecksumSizes, PiecesAndThreadsDoNotMatter) {
  const std::vector<std::byte> bytes = some_bytes(GetParam());
  const uint64_t wanted = checksum_of(bytes);
  for (const int threads : {2, 3}) EXPECT_EQ(checksum_of(bytes, threads), wanted);
  for (const size_t piece : {size_t{61}, size_t{64}, size_t{100'001}, kChunk}) {
    Checksum checksum;
    std::span<const std::byte> rest = bytes;
    while (!rest.empty()) {
      const size_t count = std::min(piece, rest.size());
      checksum.update(rest.first(count));
      checksum.update({});
      rest = rest.subspan(count);
    }
    EXPECT_EQ(checksum.digest(), wanted) << piece;
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, ChecksumSizes,
                         ::testing::Values(0, 1, 8, 63, 64, 65, 4096, kChunk - 1, kChunk,
                                           kChunk + 1, 3 * kChunk, 3 * kChunk + 77));

TEST(Checksum, EveryFlippedBitIsSeen) {
  std::vector<std::byte> bytes = some_bytes(700);
  std::set<uint64_t> seen{checksum_of(bytes)};
  for (std::byte& byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::byte kept = byte;
      byte ^= static_cast<std::byte>(1 << bit);
      EXPECT_TRUE(seen.insert(checksum_of(bytes)).second);
      byte = kept;
    }
  }
}

TEST(Checksum, ZeroBytesAtTheEndCount) {
  std::set<uint64_t> seen;
  for (size_t count = 0; count < 200; ++count) {
    EXPECT_TRUE(seen.insert(checksum_of(std::vector<std::byte>(count))).second) << count;
  }
}

TEST(Checksum, ExchangedPartsAreSeen) {
  const std::vector<std::byte> bytes = some_bytes(2 * kChunk);
  for (const size_t length : {size_t{8}, size_t{64}, kChunk}) {
    std::vector<std::byte> other = bytes;
    std::swap_ranges(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(length),
                     other.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_NE(checksum_of(other), checksum_of(bytes)) << length;
  }
}

}  // namespace
}  // namespace spillway::checkpoint
