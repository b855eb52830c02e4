#pragma once
// The routing handle: what dispatch decided, saved for combine and backward. A self-describing
// value: a checksummed header in host memory, and maps in device memory. Copying or moving it to
// other memory changes nothing; a use that does not fit is an error that names the field.

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "spillway/tensor/tensor.h"

namespace spillway::ep {

/// Which of a model's calls a dispatch belongs to.
struct Call {
  int64_t layer = 0;  ///< index into EpConfig::recv_capacity_per_rank
  int64_t micro_batch = 0;
  int64_t step = 0;
};

/// Plain bytes, no pointers, no padding bytes that are not written.
struct HandleHeader {
  uint64_t magic = 0;
  uint64_t version = 0;
  uint64_t session_id = 0;
  int64_t epoch = 0;
  int64_t layer = 0;
  int64_t micro_batch = 0;
  int64_t step = 0;
  int64_t num_tokens = 0;   ///< T
  int64_t top_k = 0;        ///< K
  int64_t num_experts = 0;  ///< E
  int64_t ep = 0;
  int64_t alignment = 0;   ///< A
  int64_t capacity = 0;    ///< C of the buffer that this dispatch used
  int64_t index_type = 0;  ///< DType of the maps
  int64_t drop_order = 0;
  uint64_t maps_checksum = 0;  ///< of the maps and counts; 0 unless EpConfig::poison
  uint64_t checksum = 0;       ///< over all bytes before it
};
static_assert(std::is_trivially_copyable_v<HandleHeader> &&
              sizeof(HandleHeader) == 17 * sizeof(uint64_t));

inline constexpr uint64_t kHandleMagic = 0x656C646E61687773ULL;  ///< "swhandle"
inline constexpr uint64_t kHandleVersion = 1;
/// Of the maps; validate() and prepare refuse what does not fit.
inline constexpr DType kIndexType = DType::kI32;

/// Of all bytes before the field `checksum`.
uint64_t header_checksum(const HandleHeader& header);

/// Counts the handles that are alive; shared by a session and its handles. Not thread-safe.
class LiveHandles {
 public:
  int64_t count() const { return count_; }

 private:
  friend class HandleLife;
  int64_t count_ = 0;
};

/// Held by a handle; copies of a handle share one.
class HandleLife {
 public:
  explicit HandleLife(std::shared_ptr<LiveHandles> live) : live_(std::move(live)) {
    ++live_->count_;
  }
  ~HandleLife() { --live_->count_; }
  HandleLife(const HandleLife&) = delete;
  HandleLife& operator=(const HandleLife&) = delete;

 private:
  std::shared_ptr<LiveHandles> live_;
};

struct RoutingHandle {
  HandleHeader header;
  // Maps (device, i32). R = rows sent to other ranks, M = rows that stay on this rank. Send rows
  // are ordered by (destination rank, local expert, token).
  Tensor send_assignment;   ///< [R] flat index t*K+k of each row sent
  Tensor local_assignment;  ///< [M] flat index of each row that stays, in slot order
  Tensor local_slot;        ///< [M] its slot
  Tensor row_of;            ///< [T,K] -1 dropped or none; < R: send row; else R + slot here
  /// i32 [T,K], a copy, only under EpConfig::renormalize_kept and only where this rank's tokens
  /// lost something: it says which of the -1 of row_of were assignments.
  Tensor topk_idx;
  // Row and column sums (host).
  std::vector<int64_t> send_counts;   ///< [ep, L] rows of mine kept by (rank, its local expert)
  std::vector<int64_t> recv_counts;   ///< [ep, L] rows kept here by (source, local expert)
  std::vector<int64_t> token_counts;  ///< [L]
  std::vector<int64_t> slot_counts;   ///< [L]
  std::vector<int64_t> zone_begin;    ///< [L]
  std::shared_ptr<HandleLife> life;

  bool defined() const { return life != nullptr; }
  /// Slots in use: the sum of slot_counts.
  int64_t num_slots() const;
  /// Host and device memory of header, maps and counts.
  int64_t bytes() const;
};

/// Of the maps and the counts, whatever memory holds them.
uint64_t maps_checksum(const RoutingHandle& handle);

}  // namespace spillway::ep
