// What a step does to the weights: the learning rate of its own step, the clipped gradient, decay
// where the parameter has it. Computed here from the gradients that the step leaves behind.
#include <cmath>

#include "spillway/optim/schedule.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// One f32 rounding of each weight, and of the optimizer's intermediate results.
constexpr double kWeightTolerance = 1e-6;
constexpr double kEps = 0.01;

using Parameters = std::tuple<Split, double>;  // clip

class UpdateTest : public TrainTest, public testing::WithParamInterface<Parameters> {};

TEST_P(UpdateTest, FollowsTheFormula) {
  const auto& [split, clip] = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  config::Config config = with_split(base_config(), split, 1, 2);
  // Without memory of earlier gradients AdamW is lr * g / (|g| + eps), and decay.
  config.optim = {.lr = 0.05,
                  .min_lr = 0.0,
                  .warmup_steps = 0,
                  .beta1 = 0.0,
                  .beta2 = 0.0,
                  .eps = kEps,
                  .weight_decay = 0.1,
                  .clip = clip};
  config.train.steps = 4;
  TrainRun run(*ranks, config);
  for (int64_t s = 1; s <= 3; ++s) {
    std::vector<std::vector<float>> before;
    for (const nn::Parameter& parameter : run.trainer.parameters().all()) {
      const auto values = parameter.value.span<float>();
      before.emplace_back(values.begin(), values.end());
    }
    const Trainer::StepResult step = run.trainer.step(s);
    const double lr = optim::learning_rate(config.optim, s, config.train.steps);
    const double norm = step.record.grad_norm;
    const double scale = clip > 0.0 && norm > clip ? clip / norm : 1.0;
    ASSERT_EQ(scale<1.0, clip> 0.0) << "norm " << norm;
    size_t index = 0;
    for (const nn::Parameter& parameter : run.trainer.parameters().all()) {
      const auto gradient = parameter.gradient.span<float>();
      const double decay = parameter.spec.decay ? config.optim.weight_decay : 0.0;
      std::vector<float> wanted = before[index++];
      for (size_t i = 0; i < wanted.size(); ++i) {
        const double g = scale * static_cast<double>(gradient[i]);
        const double w = static_cast<double>(wanted[i]);
        wanted[i] = static_cast<float>(w - lr * (g / (std::abs(g) + kEps) + decay * w));
      }
      const auto values = parameter.value.span<float>();
      EXPECT_LE(relative_l2({values.begin(), values.end()}, wanted), kWeightTolerance)
          << parameter.spec.name << ", step " << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, UpdateTest,
                         testing::Combine(testing::ValuesIn(all_splits()),
                                          testing::Values(0.0, 0.1)),
                         [](const auto& test) {
                           return split_name(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) > 0.0 ? "_clipped" : "_unclipped");
                         });

TEST_F(TrainTest, GradNormIsThatOfTheWholeGradient) {
  for (int ep = 1; ep <= world().size(); ep *= 2) {
    TrainRun run(world(), with_split(base_config(), {ep, world().size() / ep}, 1, 1));
    const double norm = run.trainer.step(1).record.grad_norm;
    const NamedValues gradients = gather_gradients(run);
    if (!is_root()) continue;
    double squares = 0.0;
    for (const auto& [name, values] : gradients) {
      for (const float g : values) squares += static_cast<double>(g) * static_cast<double>(g);
    }
    EXPECT_TRUE(close(norm, std::sqrt(squares), kWeightTolerance)) << "ep " << ep;
  }
}

}  // namespace
}  // namespace spillway::train
