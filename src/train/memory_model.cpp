#include "memory_model.h"

#include <array>

#include "spillway/core/math.h"
#include "spillway/model/decoder.h"
#include "spillway/nn/parameter.h"
#include "spillway/ops/save_names.h"
#include "spillway/optim/bucket_layout.h"

namespace spillway::train::memory {
namespace {

using nn::SyncGroup;

int64_t padded(int64_t elements) {
  return round_up(elements, nn::ParameterStore::kGradientAlignment);
}

/// The parameters of one rank by name, and the sums of their gradients over ranks: what
/// optim::GradientSync needs of scratch, when.
class Parameters {
 public:
  Parameters(Ledger& ledger, const config::Config& config, int64_t world)
      : ledger_(ledger), ranks_{world, world / config.parallel.ep} {
    for (const nn::ParameterSpec& spec :
         model::parameter_specs(config::decoder_config(config), config::compute_dtype(config))) {
      const Shape local = spec.local_shape(config.parallel.ep);
      const int64_t columns = local[local.rank() - 1];
      const int leaf = static_cast<int>(leaves_.size());
      variables_[spec.name] = {{local.numel() / columns, columns, spec.dtype},
                               nullptr,
                               std::make_shared<Gradient>(Gradient{{}, nullptr, leaf, 0})};
      put_in_bucket(spec, local.numel());
    }
  }
  const Variable& at(const std::string& name) const { return variables_.at(name); }
  int64_t elements(SyncGroup group) const { return elements_[static_cast<size_t>(group)]; }
  /// Elements whose state this rank holds (optim::AdamW): of every bucket all, or a chunk.
  int64_t elements_of_state(bool sharded) const {
    int64_t elements = 0;
    for (const Bucket& bucket : buckets_) {
      const auto ranks = static_cast<int>(ranks_of(bucket.group));
      const int64_t whole = bucket.end - bucket.begin;
      elements += padded(sharded ? comm::chunk_of(0, ranks, whole).count : whole);
    }
    return elements;
  }

  void begin_last_micro_batch() {
    for (Bucket& bucket : buckets_) bucket.waiting_for = bucket.num_parameters;
  }
  void on_leaf_ready(int leaf) {
    Bucket& bucket = buckets_[leaves_[static_cast<size_t>(leaf)]];
    if (bucket.waiting_for > 0 && --bucket.waiting_for == 0) sum_over_ranks(bucket);
  }

 private:
  struct Bucket {
    SyncGroup group;
    int64_t begin, end;
    int64_t num_parameters = 0;
    int64_t waiting_for = 0;
  };

  /// Ranks that hold the same parameters.
  int64_t ranks_of(SyncGroup group) const { return ranks_[static_cast<size_t>(group)]; }

  /// As optim::make_bucket_layout: runs of whole parameters of a group.
  void put_in_bucket(const nn::ParameterSpec& spec, int64_t numel) {
    const auto group = static_cast<size_t>(spec.sync);
    const int64_t begin = elements_[group], end = begin + numel;
    const int64_t element_bytes = dtype_bytes(accumulator_dtype(spec.dtype));
    size_t& last = last_bucket_[group];
    if (last == kNone ||
        (end - buckets_[last].begin) * element_bytes > optim::kDefaultBucketBytes) {
      last = buckets_.size();
      buckets_.push_back({spec.sync, begin, end});
    }
    buckets_[last].end = end;
    ++buckets_[last].num_parameters;
    leaves_.push_back(last);
    elements_[group] += padded(numel);
  }

  /// comm::Communicator::reduce_scatter_sum, whole sums or not: a chunk of every rank.
  void sum_over_ranks(const Bucket& bucket) {
    const int64_t size = ranks_of(bucket.group);
    if (size == 1) return;
    ledger_.pass(size * ceil_div(bucket.end - bucket.begin, size) * dtype_bytes(DType::kF32));
  }

  static constexpr size_t kNone = static_cast<size_t>(-1);
  Ledger& ledger_;
  std::array<int64_t, 2> ranks_;
  std::map<std::string, Variable, std::less<>> variables_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> leaves_;  // the bucket of each
  std::array<size_t, 2> last_bucket_{kNone, kNone};
  std::array<int64_t, 2> elements_{};
};

/// Rows of the balance term's slopes: none, one a sequence, or one.
BalanceFacts balance_facts(const config::Config& config) {
  const moe::AuxLoss aux_loss = config.moe.router.aux_loss;
  if (aux_loss == moe::AuxLoss::kNone) return {};
  const bool by_sequence = aux_loss == moe::AuxLoss::kSequence;
  return {.rows = by_sequence ? config.train.micro_batch : 1,
          .of_world = aux_loss == moe::AuxLoss::kGlobal};
}

/// The decoder: each function has the order and the scopes of the one that it stands for in model/,
/// nn/ and moe/, since those decide how long a block lives.
class Decoder {
 public:
  Decoder(const config::Config& config, const StepFacts& facts, const Parameters& parameters)
      : config_(config::decoder_config(config)),
        facts_(facts),
        parameters_(parameters),
        dtype_(config::compute_dtype(config)),
        tokens_(config::tokens_per_micro_batch(config)),
        balance_(balance_facts(config)),
        attention_{config.train.micro_batch, config.data.seq,    config.model.heads,
                   config.model.kv_heads,    config_.head_dim(), facts.threads},
        ep_{config.model.hidden,
            config.moe.top_k,
            facts.rows_sent,
            tokens_ * config.moe.top_k - facts.rows_sent,
            config.moe.experts,
            config.moe.experts / config.parallel.ep,
            dtype_} {}

  /// model::Decoder::forward, up to the loss.
  Variable forward(Tape& tape) {
    const Variable scores = logits(tape);
    return cross_entropy(tape, scores);
  }

  void reserve_buffers(Tape& tape) {
    for (const int64_t slots : facts_.capacity)
      (void)buffers_.take(tape, {slots, ep_.hidden, dtype_});
  }

 private:
  Variable logits(Tape& tape) {
    Variable x = embedding(tape, tokens_, parameters_.at("model.embed_tokens.weight"));
    for (int64_t i = 0; i < config_.model.layers; ++i) {
      auto body = [this, i, &tape](const Variable& input) { return layer(tape, i, input); };
      const Variable output = config_.recompute.region == model::RecomputeRegion::kLayer
                                  ? tape.region(config_.recompute.save, x, body)
                                  : body(x);
      x = output;
    }
    x = rms_norm(tape, x, parameters_.at("model.norm.weight"));
    const char* const output =
        config_.model.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    return linear(tape, x, parameters_.at(output), accumulator_dtype(dtype_));
  }

  Variable layer(Tape& tape, int64_t index, const Variable& x) {
    const std::string prefix = str("model.layers.", index, ".");
    const Variable attended =
        self_attention(tape, rms_norm(tape, x, parameters_.at(prefix + "input_layernorm.weight")),
                       prefix + "self_attn.");
    const Variable h = add(tape, x, attended);
    if (config_.is_moe(index)) return add(tape, h, routed(tape, index, h, prefix));
    const Variable normed =
        rms_norm(tape, h, parameters_.at(prefix + "post_attention_layernorm.weight"));
    return add(tape, h, dense(tape, normed, prefix + "mlp."));
  }

  Variable routed(Tape& tape, int64_t index, const Variable& h, const std::string& prefix) {
    auto body = [this, index, &tape, prefix](const Variable& input) {
      const Variable normed =
          rms_norm(tape, input, parameters_.at(prefix + "post_attention_layernorm.weight"));
      return experts(tape, normed, index - config_.model.first_dense_layers, prefix + "mlp.");
    };
    if (config_.recompute.region != model::RecomputeRegion::kMoe) return body(h);
    return tape.region(config_.recompute.save, h, body);
  }

  Variable project(Tape& tape, const Variable& x, const std::string& prefix, const char* name) {
    Variable y = linear(tape, x, parameters_.at(prefix + name + "_proj.weight"), dtype_);
    if (config_.model.qk_norm != nn::QkNorm::kNone && *name != 'v') {
      y = rms_norm(tape, y, parameters_.at(prefix + name + "_norm.weight"));
    }
    return y;
  }

  Variable self_attention(Tape& tape, const Variable& x, const std::string& prefix) {
    Variable q = project(tape, x, prefix, "q");
    Variable k = project(tape, x, prefix, "k");
    Variable v = project(tape, x, prefix, "v");
    q = rope(tape, q);
    k = rope(tape, k);
    const Variable y = attention(tape, attention_, q, k, v);
    return linear(tape, y, parameters_.at(prefix + "o_proj.weight"), dtype_);
  }

  Variable dense(Tape& tape, const Variable& x, const std::string& prefix) {
    const Variable up = linear(tape, x, parameters_.at(prefix + "gate_up_proj.weight"), dtype_);
    const Variable act = swiglu(tape, up, {});
    return linear(tape, act, parameters_.at(prefix + "down_proj.weight"), dtype_);
  }

  Variable experts(Tape& tape, const Variable& x, int64_t moe_layer, const std::string& prefix) {
    const Variable scores = linear(tape, x, parameters_.at(prefix + "gate.weight"),
                                   accumulator_dtype(dtype_), ops::kSaveRouter);
    const Routed routed = route(tape, scores, config_.moe.top_k, balance_);
    const Dispatched sent =
        dispatch(tape, buffers_, ep_, facts_.capacity[static_cast<size_t>(moe_layer)], x, routed);
    const Variable expert_out = expert_network(tape, sent, prefix + "experts.");
    Variable out = combine(tape, buffers_, ep_, sent, tokens_, expert_out);
    if (config_.moe.shared_experts > 0) {
      out = add(tape, out, dense(tape, x, prefix + "shared_experts."));
    }
    return out;
  }

  Variable expert_network(Tape& tape, const Dispatched& sent, const std::string& prefix) {
    const int64_t ffn = config_.moe.ffn;
    const Variable up =
        grouped_linear(tape, sent.recv_tokens, parameters_.at(prefix + "gate_up_proj"), 2 * ffn,
                       ops::kSaveExpertUp);
    const Variable act = swiglu(tape, up, sent.recv_gate);
    return grouped_linear(tape, act, parameters_.at(prefix + "down_proj"), config_.model.hidden);
  }

  model::DecoderConfig config_;
  const StepFacts& facts_;
  const Parameters& parameters_;
  DType dtype_;
  int64_t tokens_;
  BalanceFacts balance_;
  AttentionFacts attention_;
  EpFacts ep_;
  ReceiveBuffers buffers_;
};

/// What is there from the first step to the last.
std::vector<BlockPtr> allocate_lasting(const config::Config& config, const Parameters& parameters,
                                       Tape& tape) {
  const model::DecoderConfig decoder = config::decoder_config(config);
  const DType dtype = config::compute_dtype(config), acc = accumulator_dtype(dtype);
  std::vector<BlockPtr> blocks;
  const auto add = [&](const Form& form, Purpose purpose) {
    blocks.push_back(tape.empty(form, purpose));
  };
  for (const SyncGroup group : {SyncGroup::kDense, SyncGroup::kExpert}) {
    add({parameters.elements(group), 1, dtype}, Purpose::kWeights);
    add({parameters.elements(group), 1, acc}, Purpose::kGradients);
  }
  // cos and sin of the rotary table.
  add({config.model.max_seq, 2 * (decoder.head_dim() / 2), acc}, Purpose::kWeights);
  if (config.moe.router.bias_update_rate > 0.0) {
    const auto moe_layers = static_cast<int64_t>(decoder.moe_layers().size());
    add({moe_layers, config.moe.experts, DType::kF32}, Purpose::kWeights);
  }
  // Two moments, and a master copy where the weights are not fp32 themselves.
  const int64_t states = dtype == DType::kF32 ? 2 : 3;
  add({parameters.elements_of_state(config.parallel.zero == 1), states, DType::kF32},
      Purpose::kOptimizer);
  return blocks;
}

}  // namespace

void walk_training(const config::Config& config, const StepFacts& facts, Ledger& ledger) {
  Parameters parameters(ledger, config, facts.world);
  Tape tape(ledger);
  const std::vector<BlockPtr> lasting = allocate_lasting(config, parameters, tape);
  Decoder decoder(config, facts, parameters);
  decoder.reserve_buffers(tape);
  tape.on_leaf_ready([&](int leaf) { parameters.on_leaf_ready(leaf); });
  // The first backward may leave a receive buffer behind that the second step begins with; a third
  // micro-batch and a third step are like the second.
  const int64_t micro_batches = std::min<int64_t>(config.train.grad_accum, 2);
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t m = 0; m < micro_batches; ++m) {
      const BlockPtr batch =
          tape.empty({2 * config::tokens_per_micro_batch(config), 1, DType::kI32}, Purpose::kData);
      if (m + 1 == micro_batches) parameters.begin_last_micro_batch();
      tape.backward(decoder.forward(tape));
    }
  }
}

}  // namespace spillway::train::memory
