#pragma once
// A decoder of one rank with its session and a batch of random tokens.

#include <algorithm>

#include "spillway/model/decoder.h"
#include "spillway/ops/basic.h"
#include "support/kernel_test.h"
#include "support/parameter_gradient_check.h"
#include "support/self_session.h"

namespace spillway::model {

/// One dense and one MoE layer, shared expert, two query heads a kv head.
inline DecoderConfig tiny_config() {
  return {.model = {.vocab_size = 11,
                    .hidden = 8,
                    .layers = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 4,
                    .max_seq = 8,
                    .qk_norm = QkNorm::kHead,
                    .first_dense_layers = 1,
                    .dense_ffn = 10},
          .moe = {.experts = 4, .top_k = 2, .ffn = 6, .shared_experts = 1, .alignment = 2}};
}

struct ModelOptions {
  DecoderConfig config = tiny_config();
  DType dtype = DType::kF64;
  int64_t batch = 2;
  int64_t seq = 5;
  uint64_t seed = 1;
};

struct TestModel {
  explicit TestModel(ModelOptions model_options) : options(std::move(model_options)) {}

  static ep::EpConfig ep_config(const ModelOptions& o) {
    const moe::MoeConfig& m = o.config.moe;
    ep::EpConfig config{.num_experts = std::max<int64_t>(m.experts, 1),
                        .hidden = o.config.model.hidden,
                        .top_k = m.experts > 0 ? m.top_k : 1,
                        .alignment = m.alignment,
                        .dtype = o.dtype,
                        .max_tokens_per_rank = std::max<int64_t>(o.batch * o.seq, 1)};
    const auto layers = std::max<size_t>(o.config.moe_layers().size(), 1);
    config.recv_capacity_per_rank.assign(layers,
                                         spillway::testing::SelfSession::worst_case(config));
    return config;
  }
  static Tensor random_ids(Context& ctx, const ModelOptions& o, uint64_t seed) {
    Tensor ids = Tensor::empty(ctx, {o.batch, o.seq}, DType::kI32, Purpose::kData);
    Rng rng(seed);
    for (int32_t& id : ids.span<int32_t>()) {
      id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(o.config.model.vocab_size)));
    }
    return ids;
  }
  moe::MoeCall call() {
    const int64_t num_tokens = std::max<int64_t>(options.batch * options.seq, 1);
    return {.session = self.session,
            .token_scale = 1.0 / static_cast<double>(num_tokens),
            .records = &records};
  }
  ForwardResult forward(Tape& tape) { return decoder.forward(tape, tokens, targets, call()); }
  /// Forward and backward into zeroed gradients; the objective.
  double step() {
    store.zero_gradients(ctx);
    Tape tape(ctx);
    const ForwardResult result = forward(tape);
    const double objective = ops::scalar_value(result.objective.value());
    tape.backward(result.objective);
    return objective;
  }

  ModelOptions options;
  Context ctx;
  spillway::testing::SelfSession self{ctx, ep_config(options)};
  nn::ParameterStore store{ctx, parameter_specs(options.config, options.dtype), options.seed, 1, 0};
  Decoder decoder{ctx, options.config, store};
  Tensor tokens = random_ids(ctx, options, 21);
  Tensor targets = random_ids(ctx, options, 22);
  std::vector<moe::LayerRecord> records;
};

}  // namespace spillway::model
