#include "transformers_config.h"

#include <numeric>
#include <string_view>
#include <vector>

#include "json.h"
#include "spillway/checkpoint/tensor_names.h"
#include "spillway/core/choice.h"

namespace spillway::checkpoint {
namespace {

/// The weights of a token's experts sum to 1.
bool renormalised(const moe::MoeConfig& moe) {
  return !moe.router.softmax_before_topk || (moe.router.normalize_topk && moe.top_k > 1);
}

/// The family's model in transformers computes what ours does, given the right keys.
bool same_function(const model::DecoderConfig& config, Family family) {
  const model::ModelConfig& m = config.model;
  switch (family) {
    case Family::kQwen3Moe:
      return config.moe.router.scale == 1.0;
    case Family::kOlmoe:
      return config.moe.router.scale == 1.0 && config.head_dim() * m.heads == m.hidden;
    case Family::kMixtral:
      return config.moe.router.scale == 1.0 &&
             (renormalised(config.moe) || config.moe.top_k == config.moe.experts);
    case Family::kDeepseek:
      break;  // its attention is another
  }
  return false;
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kBF16:
      return "bfloat16";
    default:
      return "float32";
  }
}

void put_common(const model::DecoderConfig& config, DType dtype, OrderedJson& json) {
  const model::ModelConfig& m = config.model;
  json["vocab_size"] = m.vocab_size;
  json["hidden_size"] = m.hidden;
  json["num_hidden_layers"] = m.layers;
  json["num_attention_heads"] = m.heads;
  json["num_key_value_heads"] = m.kv_heads;
  json["head_dim"] = config.head_dim();
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = m.max_seq;
  json["rms_norm_eps"] = m.norm_eps;
  // The first for version 4 of transformers, the second for 5.
  json["rope_theta"] = m.rope_theta;
  json["rope_parameters"]["rope_type"] = "default";
  json["rope_parameters"]["rope_theta"] = m.rope_theta;
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["initializer_range"] = nn::Init{}.std;
  json["tie_word_embeddings"] = m.tie_embeddings;
  // Absent ones would be the defaults of the released models.
  for (const char* const key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    json[key] = nullptr;
  json["torch_dtype"] = torch_name(dtype);
  json["dtype"] = torch_name(dtype);
}

void put_experts(const model::DecoderConfig& config, Family family, OrderedJson& json) {
  const moe::MoeConfig& moe = config.moe;
  const bool mixtral = family == Family::kMixtral;
  json[mixtral ? "num_local_experts" : "num_experts"] = moe.experts;
  json["num_experts_per_tok"] = moe.top_k;
  const bool aux = moe.router.aux_loss != moe::AuxLoss::kNone;
  json["router_aux_loss_coef"] = aux ? moe.router.aux_coef : 0.0;
  json["output_router_logits"] = false;
  if (family != Family::kQwen3Moe) json["intermediate_size"] = moe.ffn;
  if (!mixtral) json["norm_topk_prob"] = renormalised(moe);
  json[family == Family::kOlmoe ? "clip_qkv" : "sliding_window"] = nullptr;
  if (family != Family::kQwen3Moe) return;
  json["moe_intermediate_size"] = moe.ffn;
  json["intermediate_size"] = config.model.dense_ffn;
  std::vector<int64_t> dense(static_cast<size_t>(config.model.first_dense_layers));
  std::iota(dense.begin(), dense.end(), 0);
  json["mlp_only_layers"] = dense;
  json["decoder_sparse_step"] = 1;
  json["use_sliding_window"] = false;
}

// For a reader who writes a model of their own: DeepSeek-V3's keys where it has one.
void put_own(const model::DecoderConfig& config, OrderedJson& json) {
  const moe::MoeConfig& moe = config.moe;
  json["qk_norm"] = choice_name(model::kQkNormChoices, config.model.qk_norm);
  json["n_routed_experts"] = moe.experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["moe_intermediate_size"] = moe.ffn;
  json["n_shared_experts"] = moe.shared_experts;
  json["first_k_dense_replace"] = config.model.first_dense_layers;
  json["intermediate_size"] = config.model.dense_ffn;
  json["scoring_func"] = choice_name(moe::kScoreChoices, moe.router.score);
  json["softmax_before_topk"] = moe.router.softmax_before_topk;
  json["norm_topk_prob"] = moe.router.normalize_topk;
  json["routed_scaling_factor"] = moe.router.scale;
  json["n_group"] = moe.router.groups;
  json["topk_group"] = moe.router.topk_groups;
}

}  // namespace

std::string transformers_config_text(const model::DecoderConfig& config, DType dtype) {
  const Family family = family_of(config);
  OrderedJson json;
  if (same_function(config, family)) {
    const std::string_view architecture = family == Family::kQwen3Moe ? "Qwen3MoeForCausalLM"
                                          : family == Family::kOlmoe  ? "OlmoeForCausalLM"
                                                                      : "MixtralForCausalLM";
    json["architectures"] = {architecture};
    json["model_type"] = family_name(family);
    put_common(config, dtype, json);
    put_experts(config, family, json);
  } else {
    json["model_type"] = "spillway_moe";
    put_common(config, dtype, json);
    put_own(config, json);
  }
  return json.dump(2) + "\n";
}

}  // namespace spillway::checkpoint
