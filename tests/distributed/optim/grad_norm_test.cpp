#include "spillway/optim/grad_norm.h"

#include <cmath>

#include "worlds.h"

namespace spillway::optim {
namespace {

/// Gradient of the whole model, as it is after the sum over ranks.
float whole_gradient(int64_t position, int64_t index) {
  return static_cast<float>((position * 7 + index * 3) % 9 - 4);
}

double squares_of(nn::SyncGroup group) {
  double sum = 0.0;
  int64_t position = 0;
  for (const nn::ParameterSpec& spec : small_model()) {
    for (int64_t i = 0; spec.sync == group && i < spec.shape.numel(); ++i) {
      sum += static_cast<double>(whole_gradient(position, i)) * whole_gradient(position, i);
    }
    ++position;
  }
  return sum;
}

double sum_over_world(RankModel& model, double value) {
  Tensor sum = Tensor::from<double>(model.ctx, {1}, std::vector<double>{value});
  model.world->all_reduce_sum(model.ctx, sum);
  return sum.data<double>()[0];
}

class NormAtEp : public testing::TestWithParam<int> {};

TEST_P(NormAtEp, ContributionsAddUpToTheWholeModel) {
  RankModel model(GetParam());
  fill_gradients(model.store, model.topology.ep_rank(), whole_gradient);
  const double mine = norm_squares_contribution(model.ctx, model.store, model.topology, {});
  const double expected = squares_of(nn::SyncGroup::kDense) + squares_of(nn::SyncGroup::kExpert);
  EXPECT_EQ(sum_over_world(model, mine), expected);
}

TEST_P(NormAtEp, OnlyTheFirstEpGroupContributesAndOnlyRank0ItsDensePart) {
  RankModel model(GetParam());
  fill_gradients(model.store, model.topology.ep_rank(), whole_gradient);
  double expected = 0.0;
  if (model.world->rank() == 0) {
    expected += local_norm_squares(model.ctx, model.store, nn::SyncGroup::kDense);
  }
  if (model.world->rank() < GetParam()) {
    expected += local_norm_squares(model.ctx, model.store, nn::SyncGroup::kExpert);
  }
  EXPECT_EQ(norm_squares_contribution(model.ctx, model.store, model.topology, {}), expected);
}

TEST_P(NormAtEp, ABadExpertIsSeenInTheNormOfTheWorld) {
  RankModel model(GetParam());
  fill_gradients(model.store, model.topology.ep_rank(), whole_gradient);
  const bool owner = model.topology.ep_rank() == model.topology.ep() - 1;
  if (owner) model.store.at("down").gradient.data<float>()[7] = INFINITY;
  const double mine = norm_squares_contribution(model.ctx, model.store, model.topology, {});
  EXPECT_FALSE(std::isfinite(sum_over_world(model, mine)));
}

INSTANTIATE_TEST_SUITE_P(Worlds, NormAtEp, testing::ValuesIn(ep_sizes()), ep_name);

}  // namespace
}  // namespace spillway::optim
