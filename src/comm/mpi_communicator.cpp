#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <utility>

#include "mpi_handle.h"
#include "segments.h"
#include "spillway/comm/communicator.h"
#include "spillway/core/log.h"

namespace spillway::comm {
namespace {

constexpr int kTag = 1;
// Neighbours up to this size travel as one message: a message of its own costs more than the second
// copy that MPI then makes.
constexpr int64_t kSmallBytes = int64_t{1} << 14;
constexpr int64_t kMergedBytes = int64_t{1} << 18;

bool adjoin(const Segment& a, const Segment& b) {
  return static_cast<std::byte*>(a.data) + a.bytes == b.data;
}

class MpiCommunicator final : public Communicator, public MpiHandle {
 public:
  /// Takes `comm` over: freed with this object.
  MpiCommunicator(MPI_Comm comm, int64_t max_message_bytes)
      : comm_(comm), max_message_bytes_(max_message_bytes) {
    MPI_CHECK(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
    MPI_CHECK(MPI_Comm_size(comm_, &size_));
  }
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "mpi"; }
  MPI_Comm mpi_comm() const override { return comm_; }

  void all_gather(const void* send, void* recv, int64_t bytes) override;
  std::vector<std::vector<std::byte>> gather_to_root(std::span<const std::byte> blob) override;
  void broadcast_from_root(std::vector<std::byte>& blob) override;
  void exchange(std::span<const Segment> sends, std::span<const Segment> recvs) override;
  void exchange_overlapped(std::span<const Segment> sends, std::span<const Segment> recvs,
                           const Overlap& overlap) override;
  void barrier() override { MPI_CHECK(MPI_Barrier(comm_)); }
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  /// Calls `message(parts, bytes)` for each message, of at most `max_message_bytes_`. What is cut
  /// and what travels together depends on the sizes of a peer's segments alone: both sides agree.
  template <typename Message>
  void for_each_message(std::span<const Segment> segments, Message&& message);
  MPI_Request receive(std::span<const Segment> parts, int64_t bytes);
  MPI_Request send(std::span<const Segment> parts, int64_t bytes);
  /// The bytes of all parts where they lie, as one element at MPI_BOTTOM. To be freed.
  MPI_Datatype scattered(std::span<const Segment> parts);
  void withdraw_receives();
  void check_received(size_t num_recvs) const;

  MPI_Comm comm_;
  int64_t max_message_bytes_;
  int rank_ = 0;
  int size_ = 0;
  int uncaught_at_start_ = std::uncaught_exceptions();
  // Kept between calls so that a step in steady state allocates nothing here.
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_bytes_;
  std::vector<Segment> by_peer_;
  std::vector<int> part_bytes_;
  std::vector<MPI_Aint> part_begin_;
};

MpiCommunicator::~MpiCommunicator() {
  // Freeing is a collective: not while an exception unwinds (the other ranks may not come), and
  // not after MPI has ended.
  if (std::uncaught_exceptions() > uncaught_at_start_) return;
  int finalised = 0;
  if (MPI_Finalized(&finalised) != MPI_SUCCESS || finalised != 0) return;
  const int code = MPI_Comm_free(&comm_);
  if (code != MPI_SUCCESS) log::error("MPI_Comm_free failed with code ", code);
}

template <typename Message>
void MpiCommunicator::for_each_message(std::span<const Segment> segments, Message&& message) {
  by_peer_.clear();
  std::copy_if(segments.begin(), segments.end(), std::back_inserter(by_peer_),
               [](const Segment& segment) { return segment.bytes > 0; });
  const auto lower = [](const Segment& a, const Segment& b) { return a.peer < b.peer; };
  if (!std::is_sorted(by_peer_.begin(), by_peer_.end(), lower)) {
    std::stable_sort(by_peer_.begin(), by_peer_.end(), lower);
  }
  // From the next rank on: not all ranks turn to rank 0 first.
  std::rotate(by_peer_.begin(),
              std::upper_bound(by_peer_.begin(), by_peer_.end(), Segment{rank_}, lower),
              by_peer_.end());
  const int64_t small = std::min(kSmallBytes, max_message_bytes_);
  const int64_t most = std::min(kMergedBytes, max_message_bytes_);
  for (size_t begin = 0; begin < by_peer_.size();) {
    size_t end = begin;
    int64_t bytes = 0;
    while (end < by_peer_.size() && by_peer_[end].peer == by_peer_[begin].peer &&
           by_peer_[end].bytes <= small && bytes + by_peer_[end].bytes <= most) {
      bytes += by_peer_[end++].bytes;
    }
    if (end > begin) {
      message(std::span(by_peer_).subspan(begin, end - begin), bytes);
      begin = end;
      continue;
    }
    Segment rest = by_peer_[begin++];
    while (rest.bytes > 0) {
      const Segment part{rest.peer, rest.data, std::min(max_message_bytes_, rest.bytes)};
      message(std::span(&part, 1), part.bytes);
      rest.data = static_cast<std::byte*>(rest.data) + part.bytes;
      rest.bytes -= part.bytes;
    }
  }
}

MPI_Datatype MpiCommunicator::scattered(std::span<const Segment> parts) {
  part_bytes_.clear();
  part_begin_.clear();
  for (const Segment& part : parts) {
    part_bytes_.push_back(static_cast<int>(part.bytes));
    part_begin_.emplace_back();
    MPI_CHECK(MPI_Get_address(part.data, &part_begin_.back()));
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_CHECK(MPI_Type_create_hindexed(static_cast<int>(parts.size()), part_bytes_.data(),
                                     part_begin_.data(), MPI_BYTE, &type));
  MPI_CHECK(MPI_Type_commit(&type));
  return type;
}

MPI_Request MpiCommunicator::receive(std::span<const Segment> parts, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const Segment& first = parts.front();
  if (std::adjacent_find(parts.begin(), parts.end(), std::not_fn(adjoin)) == parts.end()) {
    MPI_CHECK(MPI_Irecv(first.data, static_cast<int>(bytes), MPI_BYTE, first.peer, kTag, comm_,
                        &request));
    return request;
  }
  MPI_Datatype type = scattered(parts);
  MPI_CHECK(MPI_Irecv(MPI_BOTTOM, 1, type, first.peer, kTag, comm_, &request));
  MPI_CHECK(MPI_Type_free(&type));  // MPI keeps it as long as the request needs it
  return request;
}

MPI_Request MpiCommunicator::send(std::span<const Segment> parts, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const Segment& first = parts.front();
  if (std::adjacent_find(parts.begin(), parts.end(), std::not_fn(adjoin)) == parts.end()) {
    MPI_CHECK(MPI_Isend(first.data, static_cast<int>(bytes), MPI_BYTE, first.peer, kTag, comm_,
                        &request));
    return request;
  }
  MPI_Datatype type = scattered(parts);
  MPI_CHECK(MPI_Isend(MPI_BOTTOM, 1, type, first.peer, kTag, comm_, &request));
  MPI_CHECK(MPI_Type_free(&type));
  return request;
}

void MpiCommunicator::exchange(std::span<const Segment> sends, std::span<const Segment> recvs) {
  exchange_overlapped(sends, recvs, {[](int) {}, [] {}});
}

void MpiCommunicator::exchange_overlapped(std::span<const Segment> sends,
                                          std::span<const Segment> recvs, const Overlap& overlap) {
  check_segments(sends, "send", rank_, size_);
  check_segments(recvs, "receive", rank_, size_);
  requests_.clear();
  expected_bytes_.clear();
  // One tag: between two ranks messages do not overtake each other, so the i-th send meets the
  // i-th receive. Receives first: nothing has to be buffered as unexpected.
  for_each_message(recvs, [this](std::span<const Segment> parts, int64_t bytes) {
    expected_bytes_.push_back(static_cast<int>(bytes));
    requests_.push_back(receive(parts, bytes));
  });
  try {
    int ready = -1;
    for_each_message(sends, [&](std::span<const Segment> parts, int64_t bytes) {
      const int peer = parts.front().peer;
      if (peer != std::exchange(ready, peer)) overlap.make_ready(peer);
      requests_.push_back(send(parts, bytes));
    });
    overlap.meanwhile();
  } catch (...) {
    withdraw_receives();
    throw;
  }
  statuses_.resize(requests_.size());
  const int code =
      MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) MPI_CHECK(status.MPI_ERROR);
    }
  }
  MPI_CHECK(code);
  check_received(expected_bytes_.size());
}

// The memory that rows would have come to may be gone once the caller has unwound.
void MpiCommunicator::withdraw_receives() {
  for (size_t i = 0; i < expected_bytes_.size(); ++i) {
    if (MPI_Cancel(&requests_[i]) != MPI_SUCCESS) return;
  }
  // Returns at once: each has come or is cancelled.
  MPI_Waitall(static_cast<int>(expected_bytes_.size()), requests_.data(), MPI_STATUSES_IGNORE);
}

// MPI reports a message that is too long but not one that is too short: rows that never came.
void MpiCommunicator::check_received(size_t num_recvs) const {
  for (size_t i = 0; i < num_recvs; ++i) {
    int bytes = 0;
    MPI_CHECK(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
    if (bytes != expected_bytes_[i]) {
      throw CommError(str("rank ", rank_, " received ", bytes, " bytes from rank ",
                          statuses_[i].MPI_SOURCE, ", expected ", expected_bytes_[i]));
    }
  }
}

void MpiCommunicator::all_gather(const void* send, void* recv, int64_t bytes) {
  SPILLWAY_CHECK(bytes >= 0, "all_gather of ", bytes, " bytes; allowed: >= 0");
  if (bytes <= max_message_bytes_) {
    MPI_CHECK(MPI_Allgather(send, static_cast<int>(bytes), MPI_BYTE, recv, static_cast<int>(bytes),
                            MPI_BYTE, comm_));
    return;
  }
  std::vector<Segment> sends, recvs;
  std::byte* out = static_cast<std::byte*>(recv);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sends.push_back({peer, const_cast<void*>(send), bytes});
    recvs.push_back({peer, out + peer * bytes, bytes});
  }
  exchange(sends, recvs);
  std::memmove(out + rank_ * bytes, send, static_cast<size_t>(bytes));
}

std::vector<std::vector<std::byte>> MpiCommunicator::gather_to_root(
    std::span<const std::byte> blob) {
  const int64_t bytes = static_cast<int64_t>(blob.size());
  std::vector<int64_t> sizes(rank_ == 0 ? static_cast<size_t>(size_) : 0);
  MPI_CHECK(MPI_Gather(&bytes, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, 0, comm_));
  if (rank_ != 0) {
    const Segment send{0, const_cast<std::byte*>(blob.data()), bytes};
    exchange({&send, 1}, {});
    return {};
  }
  std::vector<std::vector<std::byte>> blobs{{blob.begin(), blob.end()}};
  std::vector<Segment> recvs;
  for (int peer = 1; peer < size_; ++peer) {
    const int64_t length = sizes[static_cast<size_t>(peer)];
    blobs.emplace_back(static_cast<size_t>(length));
    recvs.push_back({peer, blobs.back().data(), length});
  }
  exchange({}, recvs);
  return blobs;
}

void MpiCommunicator::broadcast_from_root(std::vector<std::byte>& blob) {
  int64_t bytes = static_cast<int64_t>(blob.size());
  MPI_CHECK(MPI_Bcast(&bytes, 1, MPI_INT64_T, 0, comm_));
  blob.resize(static_cast<size_t>(bytes));
  for (int64_t done = 0; done < bytes; done += max_message_bytes_) {
    const int part = static_cast<int>(std::min(max_message_bytes_, bytes - done));
    MPI_CHECK(MPI_Bcast(blob.data() + done, part, MPI_BYTE, 0, comm_));
  }
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  SPILLWAY_CHECK(color >= 0, "split: color is ", color, "; allowed: >= 0");
  MPI_Comm part = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split(comm_, color, key, &part));
  return std::make_unique<MpiCommunicator>(part, max_message_bytes_);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(int64_t max_message_bytes) {
  SPILLWAY_CHECK(max_message_bytes >= 1 && max_message_bytes <= kMaxMessageBytes,
                 "max_message_bytes is ", max_message_bytes, "; allowed: 1 to ", kMaxMessageBytes);
  int initialised = 0;
  MPI_CHECK(MPI_Initialized(&initialised));
  SPILLWAY_CHECK(initialised != 0, "MPI is not initialised: construct an MpiRuntime first");
  // A duplicate: its error handling is ours, and its messages meet nobody else's.
  MPI_Comm world = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &world));
  return std::make_unique<MpiCommunicator>(world, max_message_bytes);
}

}  // namespace spillway::comm
