#include "spillway/nn/self_attention.h"

#include "spillway/kernels/rope.h"
#include "spillway/ops/attention.h"
#include "spillway/ops/basic.h"
#include "spillway/ops/linear.h"
#include "spillway/ops/rms_norm.h"
#include "spillway/ops/rope.h"

namespace spillway::nn {

RotaryTable::RotaryTable(Context& ctx, int64_t max_seq, int64_t head_dim, double theta, DType dtype)
    : cos(Tensor::empty(ctx, {max_seq, head_dim / 2}, accumulator_dtype(dtype), Purpose::kWeights)),
      sin(Tensor::empty(ctx, {max_seq, head_dim / 2}, accumulator_dtype(dtype),
                        Purpose::kWeights)) {
  kernels::rope_table(theta, cos, sin);
}

void SelfAttention::append_specs(const SelfAttentionConfig& c, const std::string& prefix,
                                 DType dtype, std::vector<ParameterSpec>& specs) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const Init out{.kind = Init::Kind::kNormal, .std = c.out_init_std};
  specs.push_back({.name = prefix + "q_proj.weight", .shape = {q, c.hidden}, .dtype = dtype});
  specs.push_back({.name = prefix + "k_proj.weight", .shape = {kv, c.hidden}, .dtype = dtype});
  specs.push_back({.name = prefix + "v_proj.weight", .shape = {kv, c.hidden}, .dtype = dtype});
  specs.push_back(
      {.name = prefix + "o_proj.weight", .shape = {c.hidden, q}, .dtype = dtype, .init = out});
  if (c.qk_norm == QkNorm::kNone) return;
  const bool head = c.qk_norm == QkNorm::kHead;
  const Init ones{.kind = Init::Kind::kOnes};
  specs.push_back({.name = prefix + "q_norm.weight",
                   .shape = {head ? c.head_dim : q},
                   .dtype = dtype,
                   .decay = false,
                   .init = ones});
  specs.push_back({.name = prefix + "k_norm.weight",
                   .shape = {head ? c.head_dim : kv},
                   .dtype = dtype,
                   .decay = false,
                   .init = ones});
}

SelfAttention::SelfAttention(const SelfAttentionConfig& config, const std::string& prefix,
                             ParameterStore& store)
    : config_(config),
      q_proj_(store.at(prefix + "q_proj.weight").variable),
      k_proj_(store.at(prefix + "k_proj.weight").variable),
      v_proj_(store.at(prefix + "v_proj.weight").variable),
      o_proj_(store.at(prefix + "o_proj.weight").variable) {
  if (config.qk_norm == QkNorm::kNone) return;
  q_norm_ = store.at(prefix + "q_norm.weight").variable;
  k_norm_ = store.at(prefix + "k_norm.weight").variable;
}

Variable SelfAttention::project(Tape& tape, const Variable& x, const Variable& w,
                                const Variable& norm, int64_t batch, int64_t num_heads) const {
  Variable y = ops::linear(tape, x, w);
  if (norm.defined() && config_.qk_norm == QkNorm::kFull) {
    y = ops::rms_norm(tape, y, norm, config_.norm_eps);
  }
  const int64_t seq = batch == 0 ? 0 : x.dim(0) / batch;
  y = ops::reshape(tape, y, {batch, seq, num_heads, config_.head_dim});
  if (norm.defined() && config_.qk_norm == QkNorm::kHead) {
    y = ops::rms_norm(tape, y, norm, config_.norm_eps);
  }
  return y;
}

Variable SelfAttention::operator()(Tape& tape, const Variable& x, int64_t batch,
                                   const RotaryTable& rotary) const {
  Variable q = project(tape, x, q_proj_, q_norm_, batch, config_.heads);
  Variable k = project(tape, x, k_proj_, k_norm_, batch, config_.kv_heads);
  Variable v = project(tape, x, v_proj_, {}, batch, config_.kv_heads);
  q = ops::rope(tape, q, rotary.cos, rotary.sin);
  k = ops::rope(tape, k, rotary.cos, rotary.sin);
  Variable y = ops::attention(tape, q, k, v);
  y = ops::reshape(tape, y, {x.dim(0), config_.heads * config_.head_dim});
  return ops::linear(tape, y, o_proj_);
}

}  // namespace spillway::nn
