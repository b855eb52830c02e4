// MPI_Alltoallv as the yardstick of benchmarks: it moves what `exchange` moves.
#include "spillway/comm/mpi_reference.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/throws.h"

namespace spillway::comm {
namespace {

using spillway::testing::error_of;
using spillway::testing::expect_holds;

// A byte that only this (sender, receiver, position) has, near enough.
std::byte mark(int from, int to, int64_t i) {
  return static_cast<std::byte>((from * 67 + to * 31 + i * 7) & 0xff);
}

// What travels from one rank to another: nothing to oneself, and nothing on some other ways.
int64_t length(int from, int to) { return from == to ? 0 : (from * 5 + to * 3) % 4 * 1000; }

struct MpiReference : ::testing::Test {
  std::unique_ptr<Communicator> world = make_mpi_world();
  int rank = world->rank();
  int size = world->size();
};

TEST_F(MpiReference, MovesWhatExchangeMoves) {
  std::vector<int64_t> send_bytes, recv_bytes;
  std::vector<std::byte> send;
  for (int peer = 0; peer < size; ++peer) {
    send_bytes.push_back(length(rank, peer));
    recv_bytes.push_back(length(peer, rank));
    for (int64_t i = 0; i < length(rank, peer); ++i) send.push_back(mark(rank, peer, i));
  }
  const int64_t total = std::accumulate(recv_bytes.begin(), recv_bytes.end(), int64_t{0});
  std::vector<std::byte> recv(static_cast<size_t>(total)), exchanged(recv.size());
  all_to_all_v(*world, send.data(), send_bytes, recv.data(), recv_bytes);

  std::vector<Segment> sends, recvs;
  int64_t sent = 0, received = 0;
  for (int peer = 0; peer < size; ++peer) {
    sends.push_back({peer, send.data() + sent, length(rank, peer)});
    recvs.push_back({peer, exchanged.data() + received, length(peer, rank)});
    sent += length(rank, peer);
    received += length(peer, rank);
  }
  world->exchange(sends, recvs);
  EXPECT_EQ(recv, exchanged);
  received = 0;
  for (int peer = 0; peer < size; ++peer) {
    for (int64_t i = 0; i < length(peer, rank); ++i) {
      ASSERT_EQ(recv[static_cast<size_t>(received++)], mark(peer, rank, i)) << peer << " " << i;
    }
  }
}

TEST_F(MpiReference, WorksInAGroupThatWasSplitOff) {
  const auto group = world->split(rank % 2, rank);
  const std::vector<int64_t> bytes(static_cast<size_t>(group->size()), 1);
  const std::vector<std::byte> send(bytes.size(), static_cast<std::byte>(group->rank() + 1));
  std::vector<std::byte> recv(bytes.size());
  all_to_all_v(*group, send.data(), bytes, recv.data(), bytes);
  for (size_t from = 0; from < recv.size(); ++from) {
    EXPECT_EQ(recv[from], static_cast<std::byte>(from + 1));
  }
}

TEST_F(MpiReference, RefusesOtherCommunicators) {
  const auto self = make_self_communicator();
  const std::vector<int64_t> none{0};
  expect_holds(error_of([&] { all_to_all_v(*self, nullptr, none, nullptr, none); }),
               {"'self'", "make_mpi_world"});
}

TEST_F(MpiReference, RefusesCountsThatCannotBe) {
  const std::vector<int64_t> none(static_cast<size_t>(size), 0);
  const auto refuse = [&](const std::vector<int64_t>& bytes, const char* part) {
    std::byte byte{};
    expect_holds(error_of([&] { all_to_all_v(*world, &byte, bytes, nullptr, none); }),
                 {"send", part});
    expect_holds(error_of([&] { all_to_all_v(*world, nullptr, none, &byte, bytes); }),
                 {"receive", part});
  };
  std::vector<int64_t> bytes = none;
  bytes.push_back(0);
  refuse(bytes, "allowed: one a rank");
  bytes = none;
  bytes.back() = -1;
  refuse(bytes, "-1");
  bytes.back() = int64_t{1} << 31;
  refuse(bytes, "2147483648");
  bytes.back() = 1;
  expect_holds(error_of([&] { all_to_all_v(*world, nullptr, bytes, nullptr, none); }),
               {"no send address", "1 bytes"});
}

}  // namespace
}  // namespace spillway::comm
