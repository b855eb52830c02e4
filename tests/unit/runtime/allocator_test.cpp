#include "spillway/runtime/allocator.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "spillway/core/error.h"
#include "spillway/core/rng.h"
#include "support/throws.h"

namespace spillway {
namespace {

using testing::throws_with;

constexpr int64_t kAlignment = 64;
constexpr int64_t kMostBytes = int64_t{1} << 47;

void expect_promised_block(int64_t bytes) {
  const int64_t block = Allocator::block_bytes(bytes);
  ASSERT_EQ(block % kAlignment, 0) << bytes;
  ASSERT_GE(block, bytes);
  const int64_t waste = block - bytes;
  ASSERT_TRUE(waste < kAlignment || waste <= bytes / 8) << bytes << " in a block of " << block;
  ASSERT_EQ(Allocator::block_bytes(block), block) << "a block fits its own class";
}

TEST(SizeClass, WasteOfSmallRequests) {
  for (int64_t bytes = 1; bytes <= 70'000; ++bytes) expect_promised_block(bytes);
}

TEST(SizeClass, WasteOfLargeRequests) {
  Rng rng(3);
  for (int i = 0; i < 20'000; ++i) {
    // Every octave alike, and the edges of classes.
    const int64_t octave = int64_t{1} << (10 + rng.below(37));
    expect_promised_block(octave + static_cast<int64_t>(rng.below(static_cast<uint64_t>(octave))));
    const int64_t edge = octave + octave / 8 * static_cast<int64_t>(rng.below(8));
    expect_promised_block(edge - 1);
    expect_promised_block(edge);
    if (edge < kMostBytes) expect_promised_block(edge + 1);
  }
  expect_promised_block(kMostBytes);
}

TEST(SizeClass, FewClassesAndNeverFallingSizes) {
  std::set<int64_t> classes;
  int64_t last = 0;
  for (int64_t bytes = 65'537; bytes <= 131'072; ++bytes) {
    const int64_t block = Allocator::block_bytes(bytes);
    ASSERT_GE(block, last);
    classes.insert(last = block);
  }
  EXPECT_EQ(classes.size(), 8U);  // an octave
}

class BlockOf : public ::testing::TestWithParam<int64_t> {
 protected:
  Allocator allocator_;
};

TEST_P(BlockOf, IsAlignedAndAllOfItCanBeWritten) {
  void* block = allocator_.allocate(GetParam(), Purpose::kData);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % kAlignment, 0U);
  std::memset(block, 0xa5, static_cast<size_t>(Allocator::block_bytes(GetParam())));
  allocator_.release(block, GetParam(), Purpose::kData);
}

TEST_P(BlockOf, ServesTheNextRequestOfItsClassForAnyPurpose) {
  void* block = allocator_.allocate(GetParam(), Purpose::kReceive);
  allocator_.release(block, GetParam(), Purpose::kReceive);
  EXPECT_EQ(allocator_.cached_bytes(), Allocator::block_bytes(GetParam()));
  const int64_t largest = Allocator::block_bytes(GetParam());
  void* again = allocator_.allocate(largest, Purpose::kWeights);
  EXPECT_EQ(again, block);
  EXPECT_EQ(allocator_.cached_bytes(), 0);
  EXPECT_EQ(allocator_.use(Purpose::kReceive).current_bytes, 0);
  EXPECT_EQ(allocator_.use(Purpose::kWeights).current_bytes, largest);
  allocator_.release(again, largest, Purpose::kWeights);
}

TEST_P(BlockOf, AnotherClassIsAnotherBlock) {
  void* block = allocator_.allocate(GetParam(), Purpose::kData);
  allocator_.release(block, GetParam(), Purpose::kData);
  const int64_t more = Allocator::block_bytes(GetParam()) + 1;
  void* other = allocator_.allocate(more, Purpose::kData);
  EXPECT_NE(other, block);
  EXPECT_EQ(allocator_.cached_bytes(), Allocator::block_bytes(GetParam()));
  allocator_.release(other, more, Purpose::kData);
}

INSTANTIATE_TEST_SUITE_P(Allocator, BlockOf,
                         ::testing::Values(1, 63, 64, 65, 511, 513, 4097, 1'000'001, (4 << 20) - 1,
                                           4 << 20, 9'999'999),
                         ::testing::PrintToStringParamName());

class EachPurpose : public ::testing::TestWithParam<int> {};

TEST_P(EachPurpose, CountsOnlyItsOwn) {
  const auto purpose = static_cast<Purpose>(GetParam());
  Allocator allocator;
  void* a = allocator.allocate(100, purpose);
  void* b = allocator.allocate(28, purpose);
  allocator.release(a, 100, purpose);
  for (int i = 0; i < kNumPurposes; ++i) {
    const MemoryUse use = allocator.use(static_cast<Purpose>(i));
    EXPECT_EQ(use.current_bytes, i == GetParam() ? 28 : 0) << i;
    EXPECT_EQ(use.peak_bytes, i == GetParam() ? 128 : 0) << i;
  }
  allocator.release(b, 28, purpose);
  EXPECT_EQ(allocator.use(purpose).current_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Allocator, EachPurpose, ::testing::Range(0, kNumPurposes),
                         [](const auto& test) {
                           return std::string(purpose_name(static_cast<Purpose>(test.param)));
                         });

TEST(Allocator, PeakOfTheTotalIsThePeakOfTheSum) {
  Allocator allocator;
  void* a = allocator.allocate(1000, Purpose::kWeights);
  allocator.release(a, 1000, Purpose::kWeights);
  void* b = allocator.allocate(600, Purpose::kData);
  EXPECT_EQ(allocator.total().current_bytes, 600);
  EXPECT_EQ(allocator.total().peak_bytes, 1000);
  allocator.release(b, 600, Purpose::kData);
}

TEST(Allocator, PeaksRestartFromWhatIsInUse) {
  Allocator allocator;
  void* a = allocator.allocate(1000, Purpose::kWeights);
  void* b = allocator.allocate(50, Purpose::kWeights);
  allocator.release(a, 1000, Purpose::kWeights);
  allocator.reset_peaks();
  EXPECT_EQ(allocator.total().peak_bytes, 50);
  EXPECT_EQ(allocator.use(Purpose::kWeights).peak_bytes, 50);
  allocator.release(b, 50, Purpose::kWeights);
  EXPECT_EQ(allocator.total().peak_bytes, 50);
}

TEST(Allocator, NoBytesAreNoBlock) {
  Allocator allocator;
  EXPECT_EQ(allocator.allocate(0, Purpose::kData), nullptr);
  allocator.release(nullptr, 0, Purpose::kData);
  EXPECT_EQ(allocator.total().peak_bytes, 0);
  EXPECT_EQ(allocator.cached_bytes(), 0);
}

TEST(Allocator, NegativeSizeThrows) {
  Allocator allocator;
  EXPECT_TRUE(throws_with<Error>([&] { allocator.allocate(-8, Purpose::kReceive); },
                                 {"asked for -8 bytes of receive"}));
}

class TooMuch : public ::testing::TestWithParam<int64_t> {};

TEST_P(TooMuch, ThrowsSizeAndPurposeAndCountsNothing) {
  Allocator allocator;
  void* block = allocator.allocate(100, Purpose::kData);
  EXPECT_TRUE(throws_with<Error>(
      [&] { allocator.allocate(GetParam(), Purpose::kReceive); },
      {"out of memory: " + std::to_string(GetParam()) + " bytes of receive", "100 bytes in use"}));
  EXPECT_EQ(allocator.total().peak_bytes, 100);
  allocator.release(block, 100, Purpose::kData);
}

INSTANTIATE_TEST_SUITE_P(Allocator, TooMuch,
                         ::testing::Values(kMostBytes + 1, int64_t{1} << 62, INT64_MAX),
                         ::testing::PrintToStringParamName());

TEST(Allocator, TrimGivesBackCachedBlocksOnly) {
  Allocator allocator;
  void* kept = allocator.allocate(300, Purpose::kData);
  void* released = allocator.allocate(5000, Purpose::kData);
  std::memset(kept, 0x5a, 300);
  allocator.release(released, 5000, Purpose::kData);
  EXPECT_EQ(allocator.cached_bytes(), Allocator::block_bytes(5000));
  allocator.trim();
  EXPECT_EQ(allocator.cached_bytes(), 0);
  EXPECT_EQ(allocator.total().current_bytes, 300);
  const auto* bytes = static_cast<const unsigned char*>(kept);
  EXPECT_TRUE(std::all_of(bytes, bytes + 300, [](unsigned char byte) { return byte == 0x5a; }));
  allocator.release(kept, 300, Purpose::kData);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Limits the address space of this process for the life of a test.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(int64_t more_bytes) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(pages * 4096 + more_bytes);
    setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(Allocator, CachedBlocksAreGivenUpBeforeMemoryRunsOut) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  Allocator allocator;
  const AddressSpaceLimit limit(1024 * kMiB);
  void* first = allocator.allocate(640 * kMiB, Purpose::kReceive);
  EXPECT_TRUE(throws_with<Error>([&] { allocator.allocate(768 * kMiB, Purpose::kReceive); },
                                 {"out of memory"}));
  allocator.release(first, 640 * kMiB, Purpose::kReceive);
  void* second = allocator.allocate(768 * kMiB, Purpose::kReceive);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(allocator.cached_bytes(), 0);
  allocator.release(second, 768 * kMiB, Purpose::kReceive);
}
#endif

/// Keeps some blocks alive, each full of a byte of its own, and looks whether one was changed.
void churn(Allocator& allocator, uint64_t thread, int* damaged) {
  struct Held {
    unsigned char* block;
    int64_t bytes;
    unsigned char fill;
  };
  std::vector<Held> held;
  Rng rng(11, thread);
  const auto drop = [&](size_t i) {
    const Held h = held[i];
    *damaged += static_cast<int>(h.bytes - std::count(h.block, h.block + h.bytes, h.fill));
    allocator.release(h.block, h.bytes, Purpose::kWorkspace);
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int i = 0; i < 2000; ++i) {
    const auto bytes = static_cast<int64_t>(1 + rng.below(2000));
    auto* block = static_cast<unsigned char*>(allocator.allocate(bytes, Purpose::kWorkspace));
    held.push_back({block, bytes, static_cast<unsigned char>(rng.below(256))});
    std::memset(block, held.back().fill, static_cast<size_t>(bytes));
    if (held.size() == 16) drop(rng.below(16));
    if (i % 500 == 0) allocator.trim();
  }
  while (!held.empty()) drop(0);
}

TEST(Allocator, ThreadsShareIt) {
  constexpr int kThreads = 4;
  Allocator allocator;
  int damaged[kThreads] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back(churn, std::ref(allocator), static_cast<uint64_t>(t), &damaged[t]);
  }
  for (std::thread& thread : threads) thread.join();
  for (const int bytes : damaged) EXPECT_EQ(bytes, 0);
  EXPECT_EQ(allocator.total().current_bytes, 0);
  EXPECT_GT(allocator.total().peak_bytes, 0);
  EXPECT_LE(allocator.total().peak_bytes, kThreads * 16 * 2000);
}

}  // namespace
}  // namespace spillway
