// The two runs of the EP self-check, one after the other.
#include <cmath>

#include "spillway/kernels/elementwise.h"
#include "spillway/train/ep_check.h"
#include "spillway/train/signals.h"
#include "spillway/train/trainer.h"

namespace spillway::train {
namespace {

constexpr int64_t kSteps = 2;
/// Far above any gradient: an update is then lr / kEpsilon times the averaged gradient.
constexpr double kEpsilon = 100.0;
/// lr / kEpsilon. With clipped gradients (a norm of the order of 1) weights move by parts of a
/// percent: far more than their rounding, so that an update without the clip factor shows.
constexpr double kStepSize = 0.2;

config::Config checked_config(config::Config config, int64_t ep) {
  config.parallel.ep = ep;
  config.parallel.zero = 0;
  config.capacity.policy = "worst_case";
  config.capacity.on_overflow = capacity::OnOverflow::kFail;
  config.data.valid.clear();
  config.checkpoint.resume = config::kNoResume;
  // Decay goes with lr: the same share of a weight as configured.
  config.optim.weight_decay *= config.optim.lr / (kStepSize * kEpsilon);
  config.optim.lr = config.optim.min_lr = kStepSize * kEpsilon;
  config.optim.schedule = optim::Schedule::kConstant;
  config.optim.eps = kEpsilon;
  config.optim.warmup_steps = 0;
  config.train.steps = kSteps;
  config.train.check_replicas = 1;
  return config;
}

/// As f32, on the host: a rank's part of an expert parameter when ep is `slice_ep`.
HeldValues held(Context& ctx, nn::ParameterStore& store, bool gradients, int64_t first_expert_part,
                int64_t num_parts) {
  HeldValues result;
  for (const nn::Parameter& parameter : store.all()) {
    const Tensor& tensor = gradients ? parameter.gradient : parameter.value;
    Tensor part = tensor;
    if (parameter.spec.sync == nn::SyncGroup::kExpert) {
      const int64_t rows = tensor.dim(0) / num_parts;
      part = tensor.rows(first_expert_part * rows, (first_expert_part + 1) * rows);
    }
    Tensor floats = Tensor::empty(ctx, part.shape(), DType::kF32, Purpose::kWorkspace);
    kernels::cast(ctx, part, floats);
    const float* const values = floats.data<float>();
    result[parameter.spec.name].assign(values, values + floats.numel());
  }
  return result;
}

std::vector<EpCheckStep> run(Context& ctx, comm::Communicator& world, const config::Config& config,
                             int64_t slice_ep) {
  SignalGate signals;
  Trainer trainer(ctx, world, config, signals);
  const int64_t num_parts = slice_ep / config.parallel.ep;
  const int64_t part = num_parts == 1 ? 0 : world.rank() % slice_ep;
  std::vector<EpCheckStep> steps;
  for (int64_t s = 1; s <= kSteps; ++s) {
    EpCheckStep shown;
    for (const moe::SelectionBias& bias : trainer.decoder().selection_biases()) {
      shown.biases.push_back(bias.values.clone(ctx));  // the step moves it
    }
    trainer.observe_routing({&shown.choices, &shown.logits});
    const Trainer::StepResult result = trainer.step(s);
    trainer.observe_routing({});
    shown.loss = result.record.loss;
    shown.aux_loss = result.record.aux_loss;
    shown.z_loss = result.record.z_loss;
    shown.grad_norm = result.record.grad_norm;
    shown.expert_counts = result.agreement.expert_counts;
    shown.gradients = held(ctx, trainer.parameters(), true, part, num_parts);
    shown.weights = held(ctx, trainer.parameters(), false, part, num_parts);
    steps.push_back(std::move(shown));
  }
  return steps;
}

}  // namespace

EpCheckResult check_ep(Context& ctx, comm::Communicator& world, const config::Config& config) {
  const int64_t ep = config.parallel.ep;
  if (ep == 1 || config::decoder_config(config).moe_layers().empty()) {
    return {true, str("ep check: ", ep == 1 ? "parallel.ep is 1" : "the model has no experts",
                      ", so there is nothing to compare with ep 1")};
  }
  // The trainer keeps a reference to its config.
  const config::Config one_config = checked_config(config, 1);
  const config::Config other_config = checked_config(config, ep);
  const std::vector<EpCheckStep> one = run(ctx, world, one_config, ep);
  const std::vector<EpCheckStep> other = run(ctx, world, other_config, ep);
  std::vector<EpCheckFlips> flips;
  for (size_t s = 0; s < one.size(); ++s) {
    flips.push_back(find_flips(config, one[s], other[s]));
  }
  const comm::Topology topology(world, static_cast<int>(ep));
  return compare_ep_runs(config, topology, one, other, flips);
}

}  // namespace spillway::train
