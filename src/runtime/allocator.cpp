#include "spillway/runtime/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway {
namespace {

constexpr int64_t kAlignmentBytes = 64;

/// Eight classes an octave: at most 1/8 of a block is waste.
int64_t size_class(int64_t bytes) {
  const int64_t least = std::max<int64_t>(bytes, kAlignmentBytes);
  const int64_t octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(least)));
  return round_up(least, std::max<int64_t>(octave / 8, kAlignmentBytes));
}

void add(MemoryUse& use, int64_t bytes) {
  use.current_bytes += bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.current_bytes);
}

}  // namespace

const char* purpose_name(Purpose purpose) {
  constexpr const char* kNames[kNumPurposes] = {"weights", "gradients", "optimizer", "activations",
                                                "receive", "workspace", "data"};
  return kNames[static_cast<int>(purpose)];
}

Allocator::~Allocator() { trim(); }

void* Allocator::allocate(int64_t bytes, Purpose purpose) {
  SPILLWAY_CHECK(bytes >= 0, "asked for ", bytes, " bytes of ", purpose_name(purpose));
  if (bytes == 0) return nullptr;
  const int64_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  void* block = nullptr;
  if (auto it = free_blocks_.find(size); it != free_blocks_.end() && !it->second.empty()) {
    block = it->second.back();
    it->second.pop_back();
  } else {
    block = std::aligned_alloc(kAlignmentBytes, static_cast<size_t>(size));
    if (block == nullptr) {
      throw Error(str("out of memory: ", bytes, " bytes of ", purpose_name(purpose), " asked for, ",
                      total_.current_bytes, " bytes in use"));
    }
  }
  add(by_purpose_[static_cast<int>(purpose)], bytes);
  add(total_, bytes);
  return block;
}

void Allocator::release(void* block, int64_t bytes, Purpose purpose) noexcept {
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  by_purpose_[static_cast<int>(purpose)].current_bytes -= bytes;
  total_.current_bytes -= bytes;
  free_blocks_[size_class(bytes)].push_back(block);
}

void Allocator::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [size, blocks] : free_blocks_) {
    for (void* block : blocks) std::free(block);
  }
  free_blocks_.clear();
}

MemoryUse Allocator::use(Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  return by_purpose_[static_cast<int>(purpose)];
}

MemoryUse Allocator::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

void Allocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (auto& use : by_purpose_) use.peak_bytes = use.current_bytes;
  total_.peak_bytes = total_.current_bytes;
}

}  // namespace spillway
