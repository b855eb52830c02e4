// The group of one: what single-process runs and ep = 1 stand on. Needs no MPI.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "spillway/comm/communicator.h"
#include "spillway/comm/topology.h"

namespace spillway::comm {
namespace {

TEST(SelfCommunicator, IsRankZeroOfOne) {
  const auto self = make_self_communicator();
  EXPECT_EQ(self->rank(), 0);
  EXPECT_EQ(self->size(), 1);
  EXPECT_EQ(self->name(), "self");
  self->barrier();
}

TEST(SelfCommunicator, AllGatherCopies) {
  const auto self = make_self_communicator();
  std::vector<int64_t> send(9), recv(9, -1);
  std::iota(send.begin(), send.end(), 3);
  self->all_gather(send.data(), recv.data(), 9 * 8);
  EXPECT_EQ(recv, send);
  self->all_gather(nullptr, nullptr, 0);
}

TEST(SelfCommunicator, GatherAndBroadcastReturnTheBlob) {
  const auto self = make_self_communicator();
  std::vector<std::byte> blob{std::byte{1}, std::byte{2}, std::byte{200}};
  const auto blobs = self->gather_to_root(blob);
  ASSERT_EQ(blobs.size(), 1u);
  EXPECT_EQ(blobs[0], blob);
  const auto before = blob;
  self->broadcast_from_root(blob);
  EXPECT_EQ(blob, before);
}

TEST(SelfCommunicator, ExchangeTakesEmptySegmentsOnly) {
  const auto self = make_self_communicator();
  const Segment empty{0, nullptr, 0};
  self->exchange({}, {});
  self->exchange({&empty, 1}, {&empty, 1});
  int32_t value = 0;
  const Segment own{0, &value, 4};
  EXPECT_THROW(self->exchange({&own, 1}, {}), Error);
  EXPECT_THROW(self->exchange({}, {&own, 1}), Error);
  const Segment other{1, &value, 4};
  EXPECT_THROW(self->exchange({&other, 1}, {}), Error);
}

TEST(SelfCommunicator, AllReduceKeepsTheBits) {
  const auto self = make_self_communicator();
  Context ctx;
  const std::vector<float> values{1.5f, -0.0f, 3e-39f};
  Tensor tensor = Tensor::from<float>(ctx, {3}, values);
  self->all_reduce_sum(ctx, tensor);
  EXPECT_EQ(std::memcmp(tensor.raw_data(), values.data(), 12), 0);
}

TEST(SelfCommunicator, SplitsIntoItself) {
  const auto part = make_self_communicator()->split(5, 3);
  EXPECT_EQ(part->size(), 1);
  EXPECT_EQ(part->name(), "self");
}

TEST(SelfCommunicator, CarriesATopologyOfOne) {
  const auto self = make_self_communicator();
  const Topology topology(*self, 1);
  EXPECT_EQ(topology.ep(), 1);
  EXPECT_EQ(topology.dp(), 1);
  EXPECT_EQ(topology.ep_group().size(), 1);
  EXPECT_EQ(topology.dp_group().size(), 1);
}

TEST(SelfCommunicator, OverlappedWorkIsDone) {
  const auto self = make_self_communicator();
  int meanwhile = 0;
  self->exchange_overlapped({}, {}, {[](int) { FAIL() << "no peer"; }, [&] { ++meanwhile; }});
  EXPECT_EQ(meanwhile, 1);
}

}  // namespace
}  // namespace spillway::comm
