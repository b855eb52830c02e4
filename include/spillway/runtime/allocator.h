#pragma once
// Memory by purpose: every byte that a rank holds is counted under what it is for, so that the
// memory table and `mem_peak_bytes` are measured and not guessed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace spillway {

enum class Purpose : int {
  kWeights,      ///< parameters as the model computes with them
  kGradients,    ///< gradients of parameters
  kOptimizer,    ///< fp32 master weights and moments
  kActivations,  ///< what the tape saves, and gradients of activations
  kReceive,      ///< receive buffers of expert parallelism and their gradients
  kWorkspace,    ///< scratch that does not outlive a call
  kData,         ///< token batches
  kCount,        ///< the number of purposes, none itself
};
inline constexpr int kNumPurposes = static_cast<int>(Purpose::kCount);
const char* purpose_name(Purpose purpose);

/// Bytes in use now and at their highest, as asked for (blocks may be larger).
struct MemoryUse {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
};

/// Caching allocator of host memory, 64-byte aligned. A released block is kept for the next request
/// of its size class, whatever the purpose, so a step in steady state maps no pages. Kept blocks go
/// back to the system by `trim`, and when the system has no memory left for a request.
/// Thread-safe. Must outlive its blocks (tensors hold a shared pointer to it).
class Allocator {
 public:
  Allocator() = default;
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Uninitialised memory; nullptr for 0 bytes. Throws Error that names size and purpose when the
  /// size is negative or the system has no memory.
  void* allocate(int64_t bytes, Purpose purpose);
  /// Takes a block back; `bytes` and `purpose` are those of its `allocate`.
  void release(void* block, int64_t bytes, Purpose purpose) noexcept;
  /// Size of the block behind a request, a size class: a multiple of 64 that is larger than `bytes`
  /// by less than 64 or by at most `bytes` / 8. For 1 <= bytes <= 2^47, all that can be had.
  static int64_t block_bytes(int64_t bytes);

  /// Gives cached blocks back to the system.
  void trim() noexcept;

  MemoryUse use(Purpose purpose) const;
  /// All purposes together; the peak is of the sum.
  MemoryUse total() const;
  /// Bytes of released blocks that wait for the next request; part of no `MemoryUse`.
  int64_t cached_bytes() const;
  /// Peaks restart from what is in use now.
  void reset_peaks();

 private:
  void free_cached() noexcept;

  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_blocks_;  // size class -> blocks
  std::array<MemoryUse, kNumPurposes> by_purpose_{};
  MemoryUse total_;
  int64_t cached_bytes_ = 0;
};

}  // namespace spillway
