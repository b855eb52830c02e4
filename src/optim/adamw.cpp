#include "spillway/optim/adamw.h"

#include "spillway/kernels/adamw.h"
#include "spillway/kernels/elementwise.h"

namespace spillway::optim {

AdamW::AdamW(Context& ctx, nn::ParameterStore& store, const OptimConfig& config)
    : store_(store), config_(config) {
  if (store.all().empty()) return;
  const DType dtype = store.all().front().spec.dtype;
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "AdamW trains f32 and bf16, not ",
                 dtype_name(dtype));
  const bool own_master = dtype != DType::kF32;
  for (const nn::SyncGroup group : {nn::SyncGroup::kDense, nn::SyncGroup::kExpert}) {
    FlatState& flat = flat_[static_cast<size_t>(group)];
    const Shape shape = store.flat_gradient(group).shape();
    if (own_master) flat.master = Tensor::zeros(ctx, shape, DType::kF32, Purpose::kOptimizer);
    flat.m = Tensor::zeros(ctx, shape, DType::kF32, Purpose::kOptimizer);
    flat.v = Tensor::zeros(ctx, shape, DType::kF32, Purpose::kOptimizer);
  }
  for (nn::Parameter& parameter : store.all()) {
    FlatState& flat = flat_[static_cast<size_t>(parameter.spec.sync)];
    const int64_t begin = parameter.gradient_offset;
    const Shape shape = parameter.value.shape();
    State state{.master = own_master ? flat.master.slice(begin, shape) : parameter.value,
                .m = flat.m.slice(begin, shape),
                .v = flat.v.slice(begin, shape)};
    if (own_master) kernels::cast(ctx, parameter.value, state.master);
    states_.emplace(parameter.spec.name, std::move(state));
  }
}

void AdamW::step(Context& ctx, double lr, double grad_scale, int64_t step) {
  SPILLWAY_CHECK(step >= 1, "AdamW step ", step, ": steps count from 1");
  Tensor none;
  for (nn::Parameter& parameter : store_.all()) {
    State& state = at(parameter.spec.name);
    // A f32 master is the value itself: there is nothing to round.
    Tensor& weight = parameter.value.dtype() == DType::kF32 ? none : parameter.value;
    kernels::adamw(ctx, {.master = state.master,
                         .m = state.m,
                         .v = state.v,
                         .grad = parameter.gradient,
                         .weight = weight,
                         .lr = lr,
                         .beta1 = config_.beta1,
                         .beta2 = config_.beta2,
                         .eps = config_.eps,
                         .decay = parameter.spec.decay ? config_.weight_decay : 0.0,
                         .grad_scale = grad_scale,
                         .step = step});
  }
}

void AdamW::refresh_values(Context& ctx) {
  for (nn::Parameter& parameter : store_.all()) {
    if (parameter.value.dtype() == DType::kF32) continue;
    kernels::cast(ctx, at(parameter.spec.name).master, parameter.value);
  }
}

int64_t AdamW::bytes() const {
  int64_t sum = 0;
  for (const FlatState& flat : flat_) {
    for (const Tensor* tensor : {&flat.master, &flat.m, &flat.v}) sum += tensor->bytes();
  }
  return sum;
}

AdamW::State& AdamW::at(std::string_view name) {
  const auto it = states_.find(name);
  if (it == states_.end()) throw Error(str("the optimizer has no parameter '", name, "'"));
  return it->second;
}

}  // namespace spillway::optim
