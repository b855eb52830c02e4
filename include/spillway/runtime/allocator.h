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
  kCount,
};
inline constexpr int kNumPurposes = static_cast<int>(Purpose::kCount);
const char* purpose_name(Purpose purpose);

/// Bytes in use now and at their highest, as asked for (blocks may be larger).
struct MemoryUse {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
};

/// Caching allocator of host memory, 64-byte aligned. A freed block is kept for the next request
/// of its size class (at most 1/8 larger than asked), so a step in steady state maps no pages.
/// Thread-safe. Must outlive its blocks (tensors hold a shared pointer to it).
class Allocator {
 public:
  Allocator() = default;
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Uninitialised memory; nullptr for 0 bytes. Throws Error naming the size when there is none.
  void* allocate(int64_t bytes, Purpose purpose);
  void release(void* block, int64_t bytes, Purpose purpose) noexcept;
  /// Gives cached blocks back to the system.
  void trim() noexcept;

  MemoryUse use(Purpose purpose) const;
  /// All purposes together; the peak is of the sum.
  MemoryUse total() const;
  /// Peaks restart from what is in use now.
  void reset_peaks();

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_blocks_;  // size class -> blocks
  std::array<MemoryUse, kNumPurposes> by_purpose_{};
  MemoryUse total_;
};

}  // namespace spillway
