#pragma once
// The language model: embedding, pre-norm decoder layers, final norm, output layer, loss.

#include <memory>
#include <vector>

#include "spillway/model/config.h"
#include "spillway/moe/layer.h"
#include "spillway/moe/selection_bias.h"
#include "spillway/nn/self_attention.h"
#include "spillway/nn/swiglu_mlp.h"

namespace spillway::model {

using autograd::Tape;
using autograd::Variable;

/// Name, shape, dtype, decay and sync group of every parameter, WITHOUT allocating. Names follow
/// transformers where it has one.
std::vector<nn::ParameterSpec> parameter_specs(const DecoderConfig& config, DType dtype);

struct ParameterCounts {
  int64_t total = 0;
  int64_t active = 0;  ///< used by one token: K of E experts; the rest as in total
};
ParameterCounts count_parameters(const DecoderConfig& config);

/// One decoder layer: x + attention(norm(x)), then x + ffn(norm(x)) with experts or a dense
/// network.
class DecoderLayer {
 public:
  DecoderLayer(Context& ctx, const DecoderConfig& config, int64_t index, nn::ParameterStore& store);
  struct Output {
    Variable x;
    std::vector<Variable> losses;  ///< aux and z of a MoE layer; empty of a dense one
  };
  Output operator()(Tape& tape, const Variable& x, int64_t batch, const nn::RotaryTable& rotary,
                    const moe::MoeCall& call) const;
  /// Null for a dense layer.
  const moe::MoeLayer* moe() const { return moe_.get(); }

 private:
  /// Norm and MoE layer: out, aux and z. A recompute region of its own under "moe".
  std::vector<Variable> routed(Tape& tape, const Variable& h, const moe::MoeCall& call) const;

  double norm_eps_;
  RecomputeConfig recompute_;
  Variable attention_norm_, ffn_norm_;
  nn::SelfAttention attention_;
  std::unique_ptr<nn::SwigluMlp> dense_;
  std::unique_ptr<moe::MoeLayer> moe_;
};

struct ForwardResult {
  Variable objective;     ///< [1] loss * token_scale + coefficients times the balance terms
  double loss_sum = 0.0;  ///< sum over this micro-batch's tokens, f64
  double aux_loss = 0.0;  ///< this cell's share, mean over MoE layers
  double z_loss = 0.0;
};

class Decoder {
 public:
  /// `store` must hold parameter_specs(config, dtype) and outlive the decoder.
  Decoder(Context& ctx, const DecoderConfig& config, nn::ParameterStore& store);

  /// tokens, targets i32 [B,S]. Gradients follow from tape.backward(result.objective).
  ForwardResult forward(Tape& tape, const Tensor& tokens, const Tensor& targets,
                        const moe::MoeCall& call) const;
  /// Logits [B*S, V] in the accumulator dtype. `losses`, unless null, gets aux and z of each MoE
  /// layer, in order. Throws Error for a sequence longer than `model.max_seq`.
  Variable logits(Tape& tape, const Tensor& tokens, const moe::MoeCall& call,
                  std::vector<Variable>* losses) const;
  const DecoderConfig& config() const { return config_; }
  /// One a MoE layer, in order; values share storage with the routers. Empty when
  /// `moe.router.bias_update_rate` is 0.
  std::vector<moe::SelectionBias> selection_biases() const;

 private:
  DecoderConfig config_;
  nn::RotaryTable rotary_;
  Variable embedding_, final_norm_, output_;
  std::vector<DecoderLayer> layers_;
};

}  // namespace spillway::model
