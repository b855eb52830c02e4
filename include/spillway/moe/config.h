#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "spillway/ops/route.h"

namespace spillway::moe {

using kernels::ScoreFunction;
using ops::AuxLoss;
enum class ForceRouting { kNone, kBalanced };

inline constexpr std::array<std::pair<std::string_view, ScoreFunction>, 3> kScoreChoices{{
    {"softmax", ScoreFunction::kSoftmax},
    {"sigmoid", ScoreFunction::kSigmoid},
    {"sqrtsoftplus", ScoreFunction::kSqrtSoftplus},
}};
inline constexpr std::array<std::pair<std::string_view, AuxLoss>, 4> kAuxLossChoices{{
    {"none", AuxLoss::kNone},
    {"switch", AuxLoss::kSwitch},
    {"sequence", AuxLoss::kSequence},
    {"global", AuxLoss::kGlobal},
}};
inline constexpr std::array<std::pair<std::string_view, ForceRouting>, 2> kForceChoices{{
    {"none", ForceRouting::kNone},
    {"balanced", ForceRouting::kBalanced},
}};

struct RouterConfig {
  /// Turns logits into scores: softmax over all experts; sigmoid, or sqrt(softplus), of each.
  ScoreFunction score = ScoreFunction::kSoftmax;
  /// softmax over all experts, then top-k (transformers); false: over the chosen ones only, which
  /// goes with neither groups nor a selection bias. Without effect on other scores.
  bool softmax_before_topk = true;
  /// Divide a token's weights by their sum. No effect at top_k = 1.
  bool normalize_topk = true;
  /// Factor on the weights.
  double scale = 1.0;
  /// Groups of consecutive experts, of which a token uses the `topk_groups` best only
  /// (DeepSeek-V3); 0 and 1: off.
  int64_t groups = 1;
  int64_t topk_groups = 1;
  /// How far the selection bias of an expert moves a step, up when it got less than its share of
  /// the step's assignments, down when more (Wang et al. 2024, arXiv 2408.15664); 0: no bias.
  double bias_update_rate = 0.0;
  /// Balance loss (Fedus et al. 2021), balanced = 1: over each (rank, micro-batch) cell ("switch"),
  /// over each sequence, or with counts of a micro-batch over all ranks ("global").
  AuxLoss aux_loss = AuxLoss::kSwitch;
  /// Its coefficient, times the sum over MoE layers.
  double aux_coef = 0.01;
  /// Coefficient of the mean over tokens of log-sum-exp(logits)^2 (Zoph et al. 2022).
  double z_coef = 0.001;
  /// "balanced": experts are dealt out in turn, whatever the scores (weights still learn).
  ForceRouting force = ForceRouting::kNone;
};

struct MoeConfig {
  /// E, experts of a layer; 0: a dense model.
  int64_t experts = 16;
  /// K, experts a token.
  int64_t top_k = 2;
  /// Width of one expert.
  int64_t ffn = 256;
  /// Experts that every token passes, as one network of this many times `ffn`; 0: none.
  int64_t shared_experts = 0;
  /// Zones of the receive buffer start at multiples of it; a power of two, 1 = off.
  int64_t alignment = 1;
  RouterConfig router;
};

template <class V>
void visit_fields(V& v, RouterConfig& c) {
  v.choice("score", c.score, kScoreChoices);
  v.field("softmax_before_topk", c.softmax_before_topk);
  v.field("normalize_topk", c.normalize_topk);
  v.field("scale", c.scale);
  v.field("groups", c.groups);
  v.field("topk_groups", c.topk_groups);
  v.field("bias_update_rate", c.bias_update_rate);
  v.choice("aux_loss", c.aux_loss, kAuxLossChoices);
  v.field("aux_coef", c.aux_coef);
  v.field("z_coef", c.z_coef);
  v.choice("force", c.force, kForceChoices);
}

template <class V>
void visit_fields(V& v, MoeConfig& c) {
  v.field("experts", c.experts);
  v.field("top_k", c.top_k);
  v.field("ffn", c.ffn);
  v.field("shared_experts", c.shared_experts);
  v.field("alignment", c.alignment);
  v.object("router", [&](auto& inner) { visit_fields(inner, c.router); });
}

}  // namespace spillway::moe
