#include "spillway/comm/mpi_reference.h"

#include <limits>

#include "mpi_handle.h"

namespace spillway::comm {
namespace {

// One side of the call as MPI takes it.
struct Side {
  std::vector<int> bytes;
  std::vector<int> begin;
};

Side make_side(const Communicator& group, const char* name, const void* data,
               std::span<const int64_t> bytes) {
  SPILLWAY_CHECK(static_cast<int64_t>(bytes.size()) == group.size(), "all_to_all_v: ", bytes.size(),
                 " ", name, " counts; allowed: one a rank, ", group.size());
  constexpr int64_t kLargest = std::numeric_limits<int>::max();
  Side side;
  int64_t total = 0;
  for (const int64_t count : bytes) {
    SPILLWAY_CHECK(count >= 0 && count <= kLargest - total, "all_to_all_v: ", name, " count is ",
                   count, " bytes after ", total, "; allowed: 0 or more, ", kLargest, " in all");
    side.bytes.push_back(static_cast<int>(count));
    side.begin.push_back(static_cast<int>(total));
    total += count;
  }
  SPILLWAY_CHECK(total == 0 || data != nullptr, "all_to_all_v: no ", name, " address for ", total,
                 " bytes");
  return side;
}

}  // namespace

void all_to_all_v(Communicator& group, const void* send, std::span<const int64_t> send_bytes,
                  void* recv, std::span<const int64_t> recv_bytes) {
  const auto* mpi = dynamic_cast<const MpiHandle*>(&group);
  SPILLWAY_CHECK(mpi != nullptr, "all_to_all_v: the communicator is '", group.name(),
                 "'; allowed: one made by make_mpi_world");
  const Side sends = make_side(group, "send", send, send_bytes);
  const Side recvs = make_side(group, "receive", recv, recv_bytes);
  MPI_CHECK(MPI_Alltoallv(send, sends.bytes.data(), sends.begin.data(), MPI_BYTE, recv,
                          recvs.bytes.data(), recvs.begin.data(), MPI_BYTE, mpi->mpi_comm()));
}

}  // namespace spillway::comm
