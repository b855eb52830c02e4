#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "spillway/moe/config.h"
#include "spillway/nn/self_attention.h"

namespace spillway::model {

using nn::QkNorm;
enum class RecomputeRegion { kNone, kMoe, kLayer };

inline constexpr std::array<std::pair<std::string_view, QkNorm>, 3> kQkNormChoices{{
    {"none", QkNorm::kNone},
    {"head", QkNorm::kHead},
    {"full", QkNorm::kFull},
}};
inline constexpr std::array<std::pair<std::string_view, RecomputeRegion>, 3> kRegionChoices{{
    {"none", RecomputeRegion::kNone},
    {"moe", RecomputeRegion::kMoe},
    {"layer", RecomputeRegion::kLayer},
}};

/// The section `model`.
struct ModelConfig {
  /// V; text needs at least 258.
  int64_t vocab_size = 258;
  /// H.
  int64_t hidden = 256;
  /// Decoder layers, dense ones included.
  int64_t layers = 4;
  /// Query heads.
  int64_t heads = 4;
  /// Key and value heads; divides `heads`.
  int64_t kv_heads = 4;
  /// Size of a head, even; 0: hidden / heads.
  int64_t head_dim = 0;
  /// Longest sequence (the rotary table).
  int64_t max_seq = 2048;
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  /// RMSNorm of queries and keys: per head (Qwen3), or over the whole projection (OLMoE).
  QkNorm qk_norm = QkNorm::kNone;
  /// The output layer uses the embedding's weight.
  bool tie_embeddings = false;
  /// The first layers have a dense SwiGLU network in place of experts.
  int64_t first_dense_layers = 0;
  /// Its width.
  int64_t dense_ffn = 1024;
};

/// The section `recompute`.
struct RecomputeConfig {
  /// What backward computes again instead of keeping: nothing; "moe": of each layer with experts
  /// the norm before them and all of the MoE layer (dense layers are kept); "layer": each decoder
  /// layer.
  RecomputeRegion region = RecomputeRegion::kNone;
  /// Named results that a region keeps all the same (ops/save_names.h).
  std::vector<std::string> save;
};

template <class V>
void visit_fields(V& v, ModelConfig& c) {
  v.field("vocab_size", c.vocab_size);
  v.field("hidden", c.hidden);
  v.field("layers", c.layers);
  v.field("heads", c.heads);
  v.field("kv_heads", c.kv_heads);
  v.field("head_dim", c.head_dim);
  v.field("max_seq", c.max_seq);
  v.field("rope_theta", c.rope_theta);
  v.field("norm_eps", c.norm_eps);
  v.choice("qk_norm", c.qk_norm, kQkNormChoices);
  v.field("tie_embeddings", c.tie_embeddings);
  v.field("first_dense_layers", c.first_dense_layers);
  v.field("dense_ffn", c.dense_ffn);
}

template <class V>
void visit_fields(V& v, RecomputeConfig& c) {
  v.choice("region", c.region, kRegionChoices);
  v.field("save", c.save);
}

/// What the decoder is built from.
struct DecoderConfig {
  ModelConfig model;
  moe::MoeConfig moe;
  RecomputeConfig recompute;

  int64_t head_dim() const {
    return model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
  }
  bool is_moe(int64_t layer) const { return moe.experts > 0 && layer >= model.first_dense_layers; }
  /// Decoder indices of the layers with experts, ascending.
  std::vector<int64_t> moe_layers() const {
    std::vector<int64_t> layers;
    for (int64_t i = 0; i < model.layers; ++i) {
      if (is_moe(i)) layers.push_back(i);
    }
    return layers;
  }
};

}  // namespace spillway::model
