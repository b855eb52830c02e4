#include "spillway/comm/topology.h"

#include <gtest/gtest.h>

namespace spillway::comm {
namespace {

// World ranks of a group's members, in group order.
std::vector<int> members(Communicator& world, Communicator& group) {
  const int rank = world.rank();
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  group.all_gather(&rank, ranks.data(), sizeof(int));
  return ranks;
}

class TopologyTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (world_->size() % GetParam() != 0) {
      GTEST_SKIP() << "needs a world that is a multiple of " << GetParam() << ", this one has "
                   << world_->size();
    }
  }
  std::unique_ptr<Communicator> world_ = make_mpi_world();
};

TEST_P(TopologyTest, GroupsConsecutiveRanks) {
  const int ep = GetParam(), rank = world_->rank();
  const Topology topology(*world_, ep);
  EXPECT_EQ(topology.ep(), ep);
  EXPECT_EQ(topology.dp(), world_->size() / ep);
  EXPECT_EQ(topology.ep_rank(), rank % ep);
  EXPECT_EQ(topology.dp_rank(), rank / ep);
  EXPECT_EQ(&topology.world(), world_.get());
  std::vector<int> consecutive, strided;
  for (int i = 0; i < ep; ++i) consecutive.push_back(rank / ep * ep + i);
  for (int i = 0; i < topology.dp(); ++i) strided.push_back(rank % ep + i * ep);
  EXPECT_EQ(members(*world_, topology.ep_group()), consecutive);
  EXPECT_EQ(members(*world_, topology.dp_group()), strided);
  EXPECT_EQ(topology.ep_group().rank(), topology.ep_rank());
  EXPECT_EQ(topology.dp_group().rank(), topology.dp_rank());
}

TEST_P(TopologyTest, ReplacesTheEpGroup) {
  Topology topology(*world_, GetParam());
  const Communicator* first = &topology.ep_group();
  const auto before = members(*world_, topology.ep_group());
  const auto old = topology.replace_ep_group(topology.make_ep_group());
  EXPECT_EQ(old.get(), first);
  EXPECT_NE(&topology.ep_group(), first);
  EXPECT_EQ(members(*world_, topology.ep_group()), before);
  EXPECT_EQ(members(*world_, *old), before);  // still alive: the caller decides when it ends
}

TEST_P(TopologyTest, RefusesAnEpGroupOfAnotherShape) {
  Topology topology(*world_, GetParam());
  EXPECT_THROW(topology.replace_ep_group(nullptr), Error);
  if (GetParam() > 1) {
    EXPECT_THROW(topology.replace_ep_group(make_self_communicator()), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Ep, TopologyTest, testing::Values(1, 2, 4),
                         [](const auto& test) { return "ep" + std::to_string(test.param); });

TEST(TopologyErrors, NameEpAndTheWorld) {
  const auto world = make_mpi_world();
  for (const int ep : {0, -2, world->size() + 1, 2 * world->size()}) {
    try {
      const Topology topology(*world, ep);
      ADD_FAILURE() << "no error for ep " << ep;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                str("ep is ", ep, "; allowed: a divisor of the world size ", world->size()));
    }
  }
}

}  // namespace
}  // namespace spillway::comm
