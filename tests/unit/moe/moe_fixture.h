#pragma once
// A MoE layer of one rank with its session, in double.

#include <algorithm>

#include "spillway/moe/layer.h"
#include "spillway/ops/basic.h"
#include "support/kernel_test.h"
#include "support/parameter_gradient_check.h"
#include "support/self_session.h"

namespace spillway::moe {

inline constexpr int64_t kHidden = 5;

inline MoeConfig small_config() { return {.experts = 4, .top_k = 2, .ffn = 3, .alignment = 1}; }

struct LayerOptions {
  MoeConfig config = small_config();
  int64_t tokens = 6;
  DType dtype = DType::kF64;
  int64_t capacity = 0;  ///< 0: room for all; else drop beyond it
};

/// The layer and its input "x", which is held as a parameter so that it is differentiated too.
struct TestLayer {
  explicit TestLayer(LayerOptions layer_options) : options(std::move(layer_options)) {
    spillway::testing::randomise(store, 0.7);
    x = store.at("x").variable;
  }
  static std::vector<nn::ParameterSpec> specs(const LayerOptions& o) {
    std::vector<nn::ParameterSpec> all;
    MoeLayer::append_specs(o.config, kHidden, 0.01, "mlp.", o.dtype, all);
    all.push_back({.name = "x", .shape = {o.tokens, kHidden}, .dtype = o.dtype});
    return all;
  }
  static ep::EpConfig ep_config(const LayerOptions& o) {
    ep::EpConfig config{.num_experts = o.config.experts,
                        .hidden = kHidden,
                        .top_k = o.config.top_k,
                        .alignment = o.config.alignment,
                        .dtype = o.dtype,
                        .max_tokens_per_rank = std::max<int64_t>(o.tokens, 1),
                        .drop_on_overflow = o.capacity > 0,
                        .poison = true};
    if (o.capacity > 0) config.recv_capacity_per_rank = {o.capacity};
    return config;
  }
  MoeCall call() {
    return {.session = self.session, .cell_scale = 0.5, .token_scale = 0.25, .records = &records};
  }
  MoeOutput run(Tape& tape) { return layer(tape, x, call()); }
  /// Output and both balance terms in one number.
  Variable scalar(Tape& tape) {
    const MoeOutput out = run(tape);
    return ops::weighted_sum(
        tape,
        std::vector{spillway::testing::random_projection(tape, out.out), out.aux_loss, out.z_loss},
        std::vector{1.0, 0.3, 0.2});
  }
  const Tensor& weight(const std::string& name) { return store.at("mlp." + name).value; }

  LayerOptions options;
  Context ctx;
  spillway::testing::SelfSession self{ctx, ep_config(options)};
  nn::ParameterStore store{ctx, specs(options), 1, 1, 0};
  MoeLayer layer{ctx, options.config, 0, "mlp.", store};
  std::vector<LayerRecord> records;
  Variable x;
};

}  // namespace spillway::moe
