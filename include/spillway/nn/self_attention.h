#pragma once

#include <string>
#include <vector>

#include "spillway/autograd/tape.h"
#include "spillway/nn/parameter.h"

namespace spillway::nn {

using autograd::Tape;
using autograd::Variable;

/// RMSNorm of queries and keys before the rotary embedding: none, over each head (Qwen3), or over
/// the whole projection (OLMoE).
enum class QkNorm { kNone, kHead, kFull };

struct SelfAttentionConfig {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  QkNorm qk_norm = QkNorm::kNone;
  double norm_eps = 1e-6;
  double out_init_std = 0.02;
};

/// cos and sin for positions [0, max_seq), computed once a model.
struct RotaryTable {
  Tensor cos;
  Tensor sin;
  RotaryTable(Context& ctx, int64_t max_seq, int64_t head_dim, double theta, DType dtype);
};

/// Causal grouped-query attention with rotary positions.
class SelfAttention {
 public:
  static void append_specs(const SelfAttentionConfig& config, const std::string& prefix,
                           DType dtype, std::vector<ParameterSpec>& specs);
  SelfAttention(const SelfAttentionConfig& config, const std::string& prefix,
                ParameterStore& store);

  /// x [B*S, H] -> [B*S, H].
  Variable operator()(Tape& tape, const Variable& x, int64_t batch,
                      const RotaryTable& rotary) const;

 private:
  Variable project(Tape& tape, const Variable& x, const Variable& w, const Variable& norm,
                   int64_t batch, int64_t num_heads) const;

  SelfAttentionConfig config_;
  Variable q_proj_, k_proj_, v_proj_, o_proj_, q_norm_, k_norm_;
};

}  // namespace spillway::nn
