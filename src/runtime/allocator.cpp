#include "spillway/runtime/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway {
namespace {

constexpr int64_t kAlignmentBytes = 64;
// Blocks from kHugeBytes on ask for huge pages. Measured: a training step gains 2 %, products whose
// rows lie 4 KiB apart up to 5 %.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kHugeBytes = 2 * kHugePageBytes;
// User addresses have 47 bits; a larger request is a mistake, and its size class might overflow.
constexpr int64_t kMostBytes = int64_t{1} << 47;

/// Fresh memory of a size class; nullptr when there is none.
void* system_block(int64_t size) {
  const bool huge = size >= kHugeBytes;
  const int64_t alignment = huge ? kHugePageBytes : kAlignmentBytes;
  void* block = std::aligned_alloc(static_cast<size_t>(alignment),
                                   static_cast<size_t>(round_up(size, alignment)));
#ifdef MADV_HUGEPAGE
  // Whole pages only: nothing beyond the block becomes resident. A refusal does no harm.
  if (block != nullptr && huge) {
    madvise(block, static_cast<size_t>(round_down(size, kHugePageBytes)), MADV_HUGEPAGE);
  }
#endif
  return block;
}

void add(MemoryUse& use, int64_t bytes) {
  use.current_bytes += bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.current_bytes);
}

}  // namespace

const char* purpose_name(Purpose purpose) {
  constexpr const char* kNames[kNumPurposes] = {"weights", "gradients", "optimizer", "activations",
                                                "receive", "workspace", "data"};
  return kNames[static_cast<size_t>(purpose)];
}

Allocator::~Allocator() { trim(); }

int64_t Allocator::block_bytes(int64_t bytes) {
  // Eight classes an octave: the step is at most 1/8 of what is asked.
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  return round_up(bytes, std::max(octave / 8, kAlignmentBytes));
}

void* Allocator::allocate(int64_t bytes, Purpose purpose) {
  SPILLWAY_CHECK(bytes >= 0, "asked for ", bytes, " bytes of ", purpose_name(purpose));
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  void* block = nullptr;
  if (bytes <= kMostBytes) {
    const int64_t size = block_bytes(bytes);
    if (auto it = free_blocks_.find(size); it != free_blocks_.end() && !it->second.empty()) {
      block = it->second.back();
      it->second.pop_back();
      cached_bytes_ -= size;
    } else {
      block = system_block(size);
      if (block == nullptr && cached_bytes_ > 0) {
        free_cached();
        block = system_block(size);
      }
    }
  }
  if (block == nullptr) {
    throw Error(str("out of memory: ", bytes, " bytes of ", purpose_name(purpose), " asked for, ",
                    total_.current_bytes, " bytes in use"));
  }
  add(by_purpose_[static_cast<size_t>(purpose)], bytes);
  add(total_, bytes);
  return block;
}

void Allocator::release(void* block, int64_t bytes, Purpose purpose) noexcept {
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  by_purpose_[static_cast<size_t>(purpose)].current_bytes -= bytes;
  total_.current_bytes -= bytes;
  const int64_t size = block_bytes(bytes);
  try {
    free_blocks_[size].push_back(block);
    cached_bytes_ += size;
  } catch (const std::bad_alloc&) {
    std::free(block);  // no room even for the list of kept blocks
  }
}

void Allocator::trim() noexcept {
  const std::lock_guard lock(mutex_);
  free_cached();
}

// The caller holds the mutex.
void Allocator::free_cached() noexcept {
  for (auto& [size, blocks] : free_blocks_) {
    for (void* block : blocks) std::free(block);
  }
  free_blocks_.clear();
  cached_bytes_ = 0;
}

MemoryUse Allocator::use(Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  return by_purpose_[static_cast<size_t>(purpose)];
}

MemoryUse Allocator::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

int64_t Allocator::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

void Allocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (auto& use : by_purpose_) use.peak_bytes = use.current_bytes;
  total_.peak_bytes = total_.current_bytes;
}

}  // namespace spillway
