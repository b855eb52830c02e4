// Sum, norm, clip and update together: any split of the model gives the model of one process.

#include <cmath>
#include <cstring>
#include <tuple>

#include "spillway/optim/adamw.h"
#include "spillway/optim/grad_norm.h"
#include "spillway/optim/gradient_sync.h"
#include "worlds.h"

namespace spillway::optim {
namespace {

constexpr int kSteps = 4;

double world_sum(RankModel& model, double value) {
  Tensor sum = Tensor::from<double>(model.ctx, {1}, std::vector<double>{value});
  model.world->all_reduce_sum(model.ctx, sum);
  return sum.data<double>()[0];
}

/// Steps on the gradients of all ranks together, in one process.
void train_alone(nn::ParameterStore& store, Context& ctx, const OptimConfig& config, int world) {
  OneRank alone;
  AdamW adamw(ctx, store, alone.topology, config, false);
  for (int step = 1; step <= kSteps; ++step) {
    fill_gradients(store, 0, [&](int64_t position, int64_t index) {
      // At ep = 1 every rank holds all experts, so that experts are summed over the world too.
      return summed_gradient(nn::SyncGroup::kDense, 0, world, 1, position + step, index);
    });
    const double squares = local_norm_squares(ctx, store, nn::SyncGroup::kDense) +
                           local_norm_squares(ctx, store, nn::SyncGroup::kExpert);
    adamw.step(ctx, 0.01, clip_scale(std::sqrt(squares), config.clip), step);
  }
}

class StepAtEp : public testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(StepAtEp, GivesTheModelOfOneProcess) {
  const auto [ep, dtype] = GetParam();
  OptimConfig config;
  config.clip = 2.0;
  RankModel model(ep, dtype);
  const int world = model.world->size();
  nn::ParameterStore alone(model.ctx, small_model(dtype), kModelSeed, 1, 0);
  train_alone(alone, model.ctx, config, world);

  AdamW adamw(model.ctx, model.store, model.topology, config, false);
  GradientSync sync(model.store, model.topology, 320);
  for (int step = 1; step <= kSteps; ++step) {
    fill_gradients(model.store, model.topology.ep_rank(), [&](int64_t position, int64_t index) {
      const bool expert =
          small_model()[static_cast<size_t>(position)].sync == nn::SyncGroup::kExpert;
      if (!expert) return gradient_of(model.world->rank(), position + step, index);
      // The owner of an expert has what all ranks of its EP group sent to it.
      float sum = 0.0F;
      for (int peer = 0; peer < ep; ++peer) {
        sum += gradient_of(model.topology.dp_rank() * ep + peer, position + step, index);
      }
      return sum;
    });
    sync.finish(model.ctx);
    const double squares = world_sum(
        model, norm_squares_contribution(model.ctx, model.store, model.topology, adamw.layout()));
    adamw.step(model.ctx, 0.01, clip_scale(std::sqrt(squares), config.clip), step);
  }

  for (nn::Parameter& p : model.store.all()) {
    const bool expert = p.spec.sync == nn::SyncGroup::kExpert;
    const int64_t first = expert ? model.topology.ep_rank() * p.value.numel() : 0;
    const Tensor expected = alone.at(p.spec.name).value.slice(first, p.value.shape());
    EXPECT_EQ(0, std::memcmp(p.value.raw_data(), expected.raw_data(),
                             static_cast<size_t>(p.value.bytes())))
        << p.spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, StepAtEp,
                         testing::Combine(testing::ValuesIn(ep_sizes()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return str("ep", std::get<0>(test.param), "_",
                                      dtype_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace spillway::optim
