#include "spillway/optim/adamw.h"

#include <algorithm>
#include <utility>

#include "spillway/core/math.h"
#include "spillway/kernels/adamw.h"
#include "spillway/kernels/elementwise.h"
#include "spillway/kernels/fill.h"

namespace spillway::optim {

AdamW::AdamW(Context& ctx, nn::ParameterStore& store, comm::Topology& topology,
             const OptimConfig& config, bool zero, int64_t bucket_bytes)
    : store_(store),
      topology_(topology),
      config_(config),
      layout_(make_bucket_layout(store, topology, zero, bucket_bytes)) {
  if (store.all().empty()) return;
  const DType dtype = store.all().front().spec.dtype;
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "AdamW trains f32 and bf16, not ",
                 dtype_name(dtype));
  const bool own_master = dtype != DType::kF32;
  allocate(ctx, own_master);
  for (size_t i = 0; i < store.all().size(); ++i) {
    const nn::Parameter& parameter = store.all()[i];
    const comm::Chunk& own = layout_.buckets[layout_.bucket_of[i]].own;
    const int64_t first = parameter.gradient_offset;
    const int64_t begin = std::max(first, own.begin);
    const int64_t end = std::min(first + parameter.value.numel(), own.begin + own.count);
    if (begin >= end) continue;
    pieces_.push_back(make_piece(parameter, layout_.bucket_of[i], {begin - first, end - begin}));
    StatePiece& piece = pieces_.back();
    if (!own_master) continue;
    // Weights that came from elsewhere since are not the initial ones rounded: those stand.
    store.initial_values(ctx, parameter, piece.begin, piece.master);
    kernels::fill_unless_rounds_to(ctx, parameter.value.slice(piece.begin, {piece.count}),
                                   piece.master);
  }
}

void AdamW::allocate(Context& ctx, bool own_master) {
  int64_t size = 0;
  for (const Bucket& bucket : layout_.buckets) {
    state_begin_.push_back(size);
    size += round_up(bucket.own.count, nn::ParameterStore::kGradientAlignment);
  }
  const auto zeros = [&] { return Tensor::zeros(ctx, {size}, DType::kF32, Purpose::kOptimizer); };
  if (own_master) flat_.master = zeros();
  flat_.m = zeros();
  flat_.v = zeros();
}

StatePiece AdamW::make_piece(const nn::Parameter& parameter, size_t bucket, comm::Chunk run) const {
  const bool dense = parameter.spec.sync == nn::SyncGroup::kDense;
  const bool first_replica = (dense ? topology_.world().rank() : topology_.dp_rank()) == 0;
  const int64_t in_bucket =
      parameter.gradient_offset + run.begin - layout_.buckets[bucket].own.begin;
  const int64_t offset = state_begin_[bucket] + in_bucket;
  const Shape shape{run.count};
  return {.parameter = &parameter,
          .begin = run.begin,
          .count = run.count,
          .master = flat_.master.defined() ? flat_.master.slice(offset, shape)
                                           : parameter.value.slice(run.begin, shape),
          .m = flat_.m.slice(offset, shape),
          .v = flat_.v.slice(offset, shape),
          .primary = layout_.sharded || first_replica};
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
  gather_values(ctx);
}

void AdamW::gather_values(Context& ctx) {
  if (!layout_.sharded) return;
  for (const Bucket& bucket : layout_.buckets) {
    Tensor values = store_.flat_value(bucket.group).slice(bucket.begin, {bucket.elements});
    group_of(topology_, bucket.group).all_gather_chunks(ctx, values);
  }
}

void AdamW::refresh_values(Context& ctx) {
  for (const StatePiece& piece : pieces_) {
    const Tensor& value = piece.parameter->value;
    if (value.dtype() == DType::kF32) continue;
    Tensor part = value.slice(piece.begin, {piece.count});
    kernels::cast(ctx, piece.master, part);
  }
  gather_values(ctx);
}

int64_t AdamW::bytes() const { return flat_.master.bytes() + flat_.m.bytes() + flat_.v.bytes(); }

}  // namespace spillway::optim
