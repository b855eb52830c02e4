// The MPI transport, with messages whole and with messages cut into parts of a few bytes.
#include <gtest/gtest.h>

#include <string>

#include "spillway/comm/communicator.h"
#include "spillway/comm/mpi_runtime.h"

namespace spillway::comm {
namespace {

// A byte that only this (sender, receiver, position) has, near enough.
std::byte mark(int from, int to, int64_t i) {
  return static_cast<std::byte>((from * 67 + to * 31 + i * 7 + i / 251) & 0xff);
}

std::vector<std::byte> message(int from, int to, int64_t bytes) {
  std::vector<std::byte> blob(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) blob[static_cast<size_t>(i)] = mark(from, to, i);
  return blob;
}

struct Limit {
  const char* name;
  int64_t bytes;
};

class MpiCommunicator : public testing::TestWithParam<Limit> {
 protected:
  std::unique_ptr<Communicator> world_ = make_mpi_world(GetParam().bytes);
  int rank_ = world_->rank();
  int size_ = world_->size();
};

TEST_P(MpiCommunicator, AllGathersInRankOrder) {
  for (const int64_t bytes : {0, 1, 7, 48, 49, 1000, 70000}) {
    // Tens of thousands of messages at once would show nothing more and take minutes.
    if (bytes > 1000 * GetParam().bytes) continue;
    const auto send = message(rank_, 0, bytes);
    std::vector<std::byte> recv(static_cast<size_t>(bytes * size_));
    world_->all_gather(send.data(), recv.data(), bytes);
    for (int from = 0; from < size_; ++from) {
      const auto expected = message(from, 0, bytes);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), recv.begin() + from * bytes))
          << "from " << from << ", " << bytes << " bytes";
    }
  }
}

TEST_P(MpiCommunicator, GathersBlobsOfAnyLength) {
  // Rank 0 and every third rank send nothing.
  const auto length = [](int rank) { return rank % 3 == 0 ? 0 : 100 * rank + 1; };
  const auto blobs = world_->gather_to_root(message(rank_, 9, length(rank_)));
  ASSERT_EQ(blobs.size(), rank_ == 0 ? static_cast<size_t>(size_) : 0u);
  for (size_t from = 0; from < blobs.size(); ++from) {
    const int sender = static_cast<int>(from);
    EXPECT_EQ(blobs[from], message(sender, 9, length(sender)));
  }
}

TEST_P(MpiCommunicator, BroadcastsTheRootsBlob) {
  for (const int64_t bytes : {0, 5, 48, 1001}) {
    // The others hold something else, of another length.
    auto blob = message(rank_, 1, rank_ == 0 ? bytes : 3 + rank_);
    world_->broadcast_from_root(blob);
    EXPECT_EQ(blob, message(0, 1, bytes));
  }
}

// Bytes of the i-th segment between two ranks: some are empty, some longer than any part.
int64_t segment_bytes(int from, int to, int i) {
  return ((from * 5 + to * 3 + i * 11) % 4) * (60 + 17 * i);
}

TEST_P(MpiCommunicator, ExchangesSegmentsInOrder) {
  constexpr int kSegments = 5;
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<std::pair<int, int>> sources;
  std::vector<Segment> sends, recvs;
  for (int i = 0; i < kSegments; ++i) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      sent.push_back(message(rank_ + 10 * i, peer, segment_bytes(rank_, peer, i)));
      received.emplace_back(static_cast<size_t>(segment_bytes(peer, rank_, i)));
      sources.emplace_back(peer, i);
      sends.push_back({peer, sent.back().data(), static_cast<int64_t>(sent.back().size())});
      recvs.push_back({peer, received.back().data(), static_cast<int64_t>(received.back().size())});
    }
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& buffer : received) std::fill(buffer.begin(), buffer.end(), std::byte{0});
    world_->exchange(sends, recvs);
    for (size_t n = 0; n < received.size(); ++n) {
      const auto [peer, i] = sources[n];
      EXPECT_EQ(received[n], message(peer + 10 * i, rank_, segment_bytes(peer, rank_, i)))
          << "segment " << i << " from " << peer << ", round " << round;
    }
  }
}

TEST_P(MpiCommunicator, OverlappedExchangeSendsWhatWasMadeReady) {
  constexpr int kSegments = 3;
  const auto bytes = [](int from, int to, int i) { return 1 + segment_bytes(from, to, i); };
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<std::pair<int, int>> peers;
  std::vector<Segment> sends, recvs;
  for (int peer = 0; peer < size_; ++peer) {
    for (int i = 0; i < kSegments && peer != rank_; ++i) {
      peers.emplace_back(peer, i);
      sent.emplace_back(static_cast<size_t>(bytes(rank_, peer, i)));
      received.emplace_back(static_cast<size_t>(bytes(peer, rank_, i)));
      sends.push_back({peer, sent.back().data(), bytes(rank_, peer, i)});
      recvs.push_back({peer, received.back().data(), bytes(peer, rank_, i)});
    }
  }
  std::vector<int> ready, others;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) others.push_back(peer);
  }
  int meanwhile = 0;
  world_->exchange_overlapped(sends, recvs,
                              {[&](int peer) {
                                 ready.push_back(peer);
                                 for (size_t n = 0; n < peers.size(); ++n) {
                                   if (peers[n].first != peer) continue;
                                   const int i = peers[n].second;
                                   const auto blob =
                                       message(rank_ + 10 * i, peer, bytes(rank_, peer, i));
                                   std::copy(blob.begin(), blob.end(), sent[n].begin());
                                 }
                               },
                               [&] { ++meanwhile; }});
  std::sort(ready.begin(), ready.end());
  EXPECT_EQ(ready, others);
  EXPECT_EQ(meanwhile, 1);
  for (size_t n = 0; n < peers.size(); ++n) {
    const auto [peer, i] = peers[n];
    EXPECT_EQ(received[n], message(peer + 10 * i, rank_, bytes(peer, rank_, i)))
        << peer << " " << i;
  }
}

TEST_P(MpiCommunicator, WorkThatThrowsLeavesNothingToBeReceived) {
  if (size_ < 2) GTEST_SKIP() << "needs a world of at least 2, this one has " << size_;
  constexpr std::byte kUntouched{0x5a};
  const auto broken = world_->split(0, rank_);  // of no use afterwards
  const int next = (rank_ + 1) % size_, before = (rank_ + size_ - 1) % size_;
  std::vector<std::byte> sent(64, std::byte{1}), received(64, kUntouched);
  const Segment send{next, sent.data(), 64}, recv{before, received.data(), 64};
  EXPECT_THROW(broken->exchange_overlapped({&send, 1}, {&recv, 1},
                                           {[](int) { throw Error("no row"); }, [] {}}),
               Error);
  world_->barrier();
  // What is sent now finds no receive that waits in memory that may be gone.
  broken->exchange({&send, 1}, {});
  world_->barrier();
  EXPECT_EQ(received, std::vector<std::byte>(64, kUntouched));
  broken->exchange({}, {&recv, 1});
  EXPECT_EQ(received, sent);
}

TEST_P(MpiCommunicator, OverlappedWorkIsDoneWithNothingToSend) {
  int meanwhile = 0;
  world_->exchange_overlapped({}, {}, {[](int) { FAIL() << "no peer"; }, [&] { ++meanwhile; }});
  EXPECT_EQ(meanwhile, 1);
}

TEST_P(MpiCommunicator, ExchangeTakesPartWithNothing) {
  // Only rank 0 sends, only the last rank receives; the others call with empty lists.
  if (size_ < 2) GTEST_SKIP() << "needs a world of at least 2, this one has " << size_;
  auto blob = message(0, 1, 333);
  std::vector<std::byte> target(333);
  std::vector<Segment> sends, recvs;
  if (rank_ == 0) sends.push_back({size_ - 1, blob.data(), 333});
  if (rank_ == size_ - 1) recvs.push_back({0, target.data(), 333});
  world_->exchange(sends, recvs);
  if (rank_ == size_ - 1) {
    EXPECT_EQ(target, blob);
  }
}

TEST_P(MpiCommunicator, RefusesBadSegments) {
  std::byte byte{};
  const auto text_of = [&](const Segment& segment) {
    try {
      world_->exchange({&segment, 1}, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(text_of({rank_, &byte, 1}).find("is this rank itself"), std::string::npos);
  EXPECT_NE(text_of({size_, &byte, 1}).find("allowed: 0 to " + std::to_string(size_ - 1)),
            std::string::npos);
  EXPECT_NE(text_of({rank_, &byte, -4}).find("-4 bytes"), std::string::npos);
  world_->barrier();
}

TEST_P(MpiCommunicator, SplitsByColorOrderedByKey) {
  const auto part = world_->split(rank_ % 2, -rank_);
  const int members = size_ / 2 + (rank_ % 2 == 0 ? size_ % 2 : 0);
  EXPECT_EQ(part->size(), members);
  EXPECT_EQ(part->name(), "mpi");
  std::vector<int> ranks(static_cast<size_t>(members));
  part->all_gather(&rank_, ranks.data(), sizeof(int));
  for (int i = 0; i < members; ++i) {
    EXPECT_EQ(ranks[static_cast<size_t>(i)], rank_ % 2 + 2 * (members - 1 - i));
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, MpiCommunicator,
                         testing::Values(Limit{"whole", kMaxMessageBytes}, Limit{"parts_of_48", 48},
                                         Limit{"parts_of_1", 1}),
                         [](const auto& test) { return std::string(test.param.name); });

/// Rank 1 sends, rank 0 expects another number of bytes; `part` is in the error that rank 0 gets.
void expect_mismatch(int64_t sent_bytes, int64_t expected_bytes, const std::string& part) {
  const auto world = make_mpi_world();
  if (world->size() < 2) GTEST_SKIP() << "needs a world of at least 2";
  std::vector<std::byte> data(64);
  const Segment send{0, data.data(), sent_bytes}, recv{1, data.data(), expected_bytes};
  if (world->rank() == 1) world->exchange({&send, 1}, {});
  if (world->rank() == 0) {
    try {
      world->exchange({}, {&recv, 1});
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(error.exit_code(), ExitCode::kCommunication);
    }
  }
  world->barrier();
}

TEST(MpiCommunicatorErrors, NamesAMessageThatIsTooLong) { expect_mismatch(64, 16, "MPI: "); }

TEST(MpiCommunicatorErrors, NamesAMessageThatIsTooShort) {
  expect_mismatch(16, 64, "received 16 bytes from rank 1, expected 64");
}

TEST(MpiCommunicatorErrors, RefusesAMessageLimitThatMpiCannotCount) {
  EXPECT_THROW(make_mpi_world(0), Error);
  EXPECT_THROW(make_mpi_world(kMaxMessageBytes + 1), Error);
}

TEST(MpiRuntimeTest, KnowsItsLauncherAndRefusesASecondStart) {
  EXPECT_TRUE(MpiRuntime::launched());
  EXPECT_THROW(MpiRuntime(nullptr, nullptr), Error);
}

}  // namespace
}  // namespace spillway::comm
