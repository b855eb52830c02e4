#pragma once
// The transport between ranks. Chosen at start-up (self, MPI; NCCL later), few methods, virtual.
// Collectives of all communicators are issued by one thread, in the same order on every rank.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spillway/tensor/tensor.h"

namespace spillway::comm {

/// A contiguous run of bytes sent to, or received from, `peer`. Between two ranks the i-th send
/// matches the i-th receive and must have as many bytes.
struct Segment {
  int peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;
};

/// Elements [begin, begin + count) of a flat tensor.
struct Chunk {
  int64_t begin = 0;
  int64_t count = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};
/// The chunk of rank `rank` when `numel` elements are split over `size` ranks: ceil(numel / size)
/// elements each, in rank order; what is left for the last ranks may be less, or nothing. Throws
/// Error for ranks that do not exist.
Chunk chunk_of(int rank, int size, int64_t numel);

/// Work of a rank while its rows travel. Neither may call the group. When one throws, nothing more
/// is received and the error goes on; the group is of no further use, as other ranks wait for rows.
struct Overlap {
  std::function<void(int peer)> make_ready;  ///< fills what the sends to a peer read
  std::function<void()> meanwhile;           ///< once, when all sends are under way
};

/// A group of ranks. Errors throw CommError. Every call is a collective of the group unless its
/// comment says otherwise; a rank with nothing to contribute calls it all the same.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "self", "mpi", ...
  virtual std::string name() const = 0;

  /// Every rank gives `bytes` bytes and receives size() * bytes, in rank order.
  virtual void all_gather(const void* send, void* recv, int64_t bytes) = 0;
  /// Blobs of any length arrive at rank 0, in rank order; other ranks get an empty list.
  virtual std::vector<std::vector<std::byte>> gather_to_root(std::span<const std::byte> blob) = 0;
  /// The blob of rank 0, on every rank. Other ranks' vectors are resized.
  virtual void broadcast_from_root(std::vector<std::byte>& blob) = 0;
  /// Moves rows: all sends and receives of this rank at once, straight between the given
  /// addresses. A segment to oneself is an error (the caller copies). Empty segments are allowed
  /// and move nothing.
  virtual void exchange(std::span<const Segment> sends, std::span<const Segment> recvs) = 0;
  /// The same with work in between: `make_ready` of each peer that is sent anything before the
  /// first send to it, once, peers in an order of the transport's choice. The base class overlaps
  /// nothing: all work, then `exchange`.
  virtual void exchange_overlapped(std::span<const Segment> sends, std::span<const Segment> recvs,
                                   const Overlap& overlap);
  /// In place sum of a f32 or f64 tensor of equal shape on every rank: this rank's `chunk_of` it
  /// becomes the sum over the ranks, the other chunks stay as they are. Addition is in rank order,
  /// so the bits do not depend on a library's algorithm. Needs workspace of about the tensor's own
  /// size. Implemented over `exchange` in the base class, as are the two that follow.
  virtual void reduce_scatter_sum(Context& ctx, Tensor& values);
  /// In place: every rank's own `chunk_of` the tensor, of any dtype, goes to all ranks.
  virtual void all_gather_chunks(Context& ctx, Tensor& values);
  /// `reduce_scatter_sum`, then `all_gather_chunks`: the bits of the sum are the same on every
  /// rank.
  virtual void all_reduce_sum(Context& ctx, Tensor& values);
  virtual void barrier() = 0;
  /// Ranks of equal `color` form a new group, ordered by `key`.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
};

/// A group of one; needs no MPI.
std::unique_ptr<Communicator> make_self_communicator();
/// The largest single MPI message; longer segments travel in parts. MPI counts are 32-bit.
inline constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;
/// All ranks that mpirun started. MPI must be initialised (see mpi_runtime.h) and outlive it. Equal
/// `max_message_bytes` on every rank; it and its groups send longer segments in parts.
std::unique_ptr<Communicator> make_mpi_world(int64_t max_message_bytes = kMaxMessageBytes);

}  // namespace spillway::comm
