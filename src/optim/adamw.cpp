#include "spillway/optim/adamw.h"

#include "spillway/kernels/adamw.h"
#include "spillway/kernels/elementwise.h"

namespace spillway::optim {

AdamW::AdamW(Context& ctx, nn::ParameterStore& store, comm::Topology& topology,
             const OptimConfig& config, bool zero)
    : store_(store), topology_(topology), config_(config) {
  if (store.all().empty()) return;
  SPILLWAY_CHECK(!zero, "parallel.zero 1 is not there yet");
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
  for (const nn::Parameter& parameter : store.all()) {
    const bool dense = parameter.spec.sync == nn::SyncGroup::kDense;
    const FlatState& flat = flat_[static_cast<size_t>(parameter.spec.sync)];
    const int64_t offset = parameter.gradient_offset;
    const Shape run{parameter.value.numel()};
    StatePiece piece{
        .parameter = &parameter,
        .begin = 0,
        .count = run.numel(),
        .master = own_master ? flat.master.slice(offset, run) : parameter.value.slice(0, run),
        .m = flat.m.slice(offset, run),
        .v = flat.v.slice(offset, run),
        .primary = (dense ? topology.world().rank() : topology.dp_rank()) == 0};
    if (own_master) kernels::cast(ctx, parameter.value.view(run), piece.master);
    pieces_.push_back(std::move(piece));
  }
}

void AdamW::step(Context& ctx, double lr, double grad_scale, int64_t step) {
  SPILLWAY_CHECK(step >= 1, "AdamW step ", step, ": steps count from 1");
  for (StatePiece& piece : pieces_) {
    const nn::Parameter& parameter = *piece.parameter;
    const Shape run{piece.count};
    // A f32 master is the value itself: there is nothing to round.
    Tensor weight;
    if (parameter.value.dtype() != DType::kF32) weight = parameter.value.slice(piece.begin, run);
    kernels::adamw(ctx, {.master = piece.master,
                         .m = piece.m,
                         .v = piece.v,
                         .grad = parameter.gradient.slice(piece.begin, run),
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
  for (const StatePiece& piece : pieces_) {
    const Tensor& value = piece.parameter->value;
    if (value.dtype() == DType::kF32) continue;
    Tensor part = value.slice(piece.begin, {piece.count});
    kernels::cast(ctx, piece.master, part);
  }
}

int64_t AdamW::bytes() const {
  int64_t sum = 0;
  for (const FlatState& flat : flat_) {
    for (const Tensor* tensor : {&flat.master, &flat.m, &flat.v}) sum += tensor->bytes();
  }
  return sum;
}

}  // namespace spillway::optim
