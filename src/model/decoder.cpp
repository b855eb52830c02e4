#include "spillway/model/decoder.h"

#include <cmath>

#include "spillway/ops/basic.h"
#include "spillway/ops/cross_entropy.h"
#include "spillway/ops/embedding.h"
#include "spillway/ops/linear.h"
#include "spillway/ops/rms_norm.h"

namespace spillway::model {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kFinalNorm = "model.norm.weight";
constexpr const char* kOutput = "lm_head.weight";

std::string layer_prefix(int64_t index) { return str("model.layers.", index, "."); }

/// Projections into the residual stream start smaller by the square root of their number (GPT-2,
/// Radford et al. 2019), so its variance does not grow with depth.
double out_init_std(const DecoderConfig& config) {
  return nn::Init{}.std / std::sqrt(2.0 * static_cast<double>(config.model.layers));
}

nn::SelfAttentionConfig attention_config(const DecoderConfig& config) {
  const ModelConfig& m = config.model;
  return {.hidden = m.hidden,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = config.head_dim(),
          .qk_norm = m.qk_norm,
          .norm_eps = m.norm_eps,
          .out_init_std = out_init_std(config)};
}

nn::ParameterSpec norm_spec(std::string name, int64_t hidden, DType dtype) {
  return {.name = std::move(name),
          .shape = {hidden},
          .dtype = dtype,
          .decay = false,
          .init = {.kind = nn::Init::Kind::kOnes}};
}

}  // namespace

std::vector<nn::ParameterSpec> parameter_specs(const DecoderConfig& config, DType dtype) {
  const ModelConfig& m = config.model;
  std::vector<nn::ParameterSpec> specs;
  specs.push_back({.name = kEmbedding, .shape = {m.vocab_size, m.hidden}, .dtype = dtype});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string prefix = layer_prefix(i);
    specs.push_back(norm_spec(prefix + "input_layernorm.weight", m.hidden, dtype));
    nn::SelfAttention::append_specs(attention_config(config), prefix + "self_attn.", dtype, specs);
    specs.push_back(norm_spec(prefix + "post_attention_layernorm.weight", m.hidden, dtype));
    if (config.is_moe(i)) {
      moe::MoeLayer::append_specs(config.moe, m.hidden, out_init_std(config), prefix + "mlp.",
                                  dtype, specs);
    } else {
      nn::SwigluMlp::append_specs(m.hidden, m.dense_ffn, out_init_std(config), prefix + "mlp.",
                                  dtype, specs);
    }
  }
  specs.push_back(norm_spec(kFinalNorm, m.hidden, dtype));
  if (!m.tie_embeddings) {
    specs.push_back({.name = kOutput, .shape = {m.vocab_size, m.hidden}, .dtype = dtype});
  }
  return specs;
}

ParameterCounts count_parameters(const DecoderConfig& config) {
  ParameterCounts counts;
  for (const nn::ParameterSpec& spec : parameter_specs(config, DType::kF32)) {
    const int64_t n = spec.shape.numel();
    counts.total += n;
    counts.active +=
        spec.sync == nn::SyncGroup::kExpert ? n / config.moe.experts * config.moe.top_k : n;
  }
  return counts;
}

DecoderLayer::DecoderLayer(Context& ctx, const DecoderConfig& config, int64_t index,
                           nn::ParameterStore& store)
    : norm_eps_(config.model.norm_eps),
      recompute_(config.recompute),
      attention_norm_(store.at(layer_prefix(index) + "input_layernorm.weight").variable),
      ffn_norm_(store.at(layer_prefix(index) + "post_attention_layernorm.weight").variable),
      attention_(attention_config(config), layer_prefix(index) + "self_attn.", store) {
  const std::string prefix = layer_prefix(index) + "mlp.";
  if (config.is_moe(index)) {
    moe_ = std::make_unique<moe::MoeLayer>(ctx, config.moe, index - config.model.first_dense_layers,
                                           prefix, store);
  } else {
    dense_ = std::make_unique<nn::SwigluMlp>(prefix, store);
  }
}

DecoderLayer::Output DecoderLayer::operator()(Tape& tape, const Variable& x, int64_t batch,
                                              const nn::RotaryTable& rotary,
                                              const moe::MoeCall& call) const {
  const Variable attended =
      attention_(tape, ops::rms_norm(tape, x, attention_norm_, norm_eps_), batch, rotary);
  const Variable h = ops::add(tape, x, attended);
  if (dense_) {
    const Variable normed = ops::rms_norm(tape, h, ffn_norm_, norm_eps_);
    return {ops::add(tape, h, (*dense_)(tape, normed)), {}};
  }
  const std::vector<Variable> outputs = routed(tape, h, call);
  return {ops::add(tape, h, outputs[0]), {outputs[1], outputs[2]}};
}

std::vector<Variable> DecoderLayer::routed(Tape& tape, const Variable& h,
                                           const moe::MoeCall& call) const {
  // By value: the body runs again in backward.
  const auto body = [this, &tape, call](const Variable& input) {
    const moe::MoeOutput output =
        (*moe_)(tape, ops::rms_norm(tape, input, ffn_norm_, norm_eps_), call);
    return std::vector{output.out, output.aux_loss, output.z_loss};
  };
  if (recompute_.region != RecomputeRegion::kMoe) return body(h);
  return tape.region({.save = recompute_.save}, h, body);
}

Decoder::Decoder(Context& ctx, const DecoderConfig& config, nn::ParameterStore& store)
    : config_(config),
      rotary_(ctx, config.model.max_seq, config.head_dim(), config.model.rope_theta,
              store.at(kEmbedding).spec.dtype),
      embedding_(store.at(kEmbedding).variable),
      final_norm_(store.at(kFinalNorm).variable),
      output_(config.model.tie_embeddings ? embedding_ : store.at(kOutput).variable) {
  for (int64_t i = 0; i < config.model.layers; ++i) layers_.emplace_back(ctx, config, i, store);
}

std::vector<moe::SelectionBias> Decoder::selection_biases() const {
  std::vector<moe::SelectionBias> biases;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const moe::MoeLayer* const layer = layers_[i].moe();
    if (layer == nullptr || !layer->selection_bias().defined()) continue;
    const auto index = static_cast<int64_t>(i);
    biases.push_back({.name = layer_prefix(index) + "mlp.gate.e_score_correction_bias",
                      .moe_layer = index - config_.model.first_dense_layers,
                      .values = layer->selection_bias()});
  }
  return biases;
}

Variable Decoder::logits(Tape& tape, const Tensor& tokens, const moe::MoeCall& call,
                         std::vector<Variable>* losses) const {
  const int64_t batch = tokens.dim(0);
  SPILLWAY_CHECK(tokens.dim(1) <= config_.model.max_seq, "a sequence of ", tokens.dim(1),
                 " tokens, model.max_seq is ", config_.model.max_seq);
  moe::MoeCall moe_call = call;
  moe_call.seq = tokens.dim(1);
  Variable x = ops::embedding(tape, tokens, embedding_);
  for (const DecoderLayer& layer : layers_) {
    auto body = [this, &layer, batch, moe_call, &tape](const Variable& input) {
      DecoderLayer::Output output = layer(tape, input, batch, rotary_, moe_call);
      output.losses.insert(output.losses.begin(), output.x);
      return output.losses;
    };
    const std::vector<Variable> outputs =
        config_.recompute.region == RecomputeRegion::kLayer
            ? tape.region({.save = config_.recompute.save}, x, body)
            : body(x);
    x = outputs.front();
    if (losses != nullptr) losses->insert(losses->end(), outputs.begin() + 1, outputs.end());
  }
  x = ops::rms_norm(tape, x, final_norm_, config_.model.norm_eps);
  return ops::linear(tape, x, output_, accumulator_dtype(x.dtype()));
}

ForwardResult Decoder::forward(Tape& tape, const Tensor& tokens, const Tensor& targets,
                               const moe::MoeCall& call) const {
  std::vector<Variable> terms;
  const Variable scores = logits(tape, tokens, call, &terms);
  const ops::CrossEntropyResult entropy =
      ops::cross_entropy(tape, scores, targets, call.token_scale);
  ForwardResult result;
  result.loss_sum = entropy.loss_sum;
  const moe::RouterConfig& router = config_.moe.router;
  const double aux_coef = router.aux_loss == moe::AuxLoss::kNone ? 0.0 : router.aux_coef;
  const double num_layers = static_cast<double>(terms.size()) / 2.0;
  std::vector<double> weights;
  for (size_t i = 0; i < terms.size(); ++i) {
    const bool is_aux = i % 2 == 0;
    weights.push_back(is_aux ? aux_coef : router.z_coef);
    (is_aux ? result.aux_loss : result.z_loss) += ops::scalar_value(terms[i].value()) / num_layers;
  }
  terms.push_back(entropy.loss);
  weights.push_back(1.0);
  result.objective = ops::weighted_sum(tape, terms, weights);
  return result;
}

}  // namespace spillway::model
