// Tokens whose experts differ between two runs of the EP self-check, and how near a tie that was.
#include <algorithm>
#include <cmath>

#include "spillway/train/ep_check.h"

namespace spillway::train {
namespace {

/// What the router compares, one token, in double: scores plus bias, and from them the groups'.
class SelectionScores {
 public:
  SelectionScores(const moe::RouterConfig& router, const Tensor& logits, const Tensor& bias)
      : router_(router), logits_(logits), bias_(bias), scores_(size(logits.dim(1))) {}

  void set_token(int64_t token) {
    const float* const row = logits_.data<float>() + token * logits_.dim(1);
    double largest = row[0], sum = 0.0;
    for (size_t e = 0; e < scores_.size(); ++e) largest = std::max<double>(largest, row[e]);
    for (size_t e = 0; e < scores_.size(); ++e) sum += std::exp(row[e] - largest);
    for (size_t e = 0; e < scores_.size(); ++e) {
      const double x = row[e];
      const double bias = bias_.defined() ? bias_.data<float>()[e] : 0.0;
      scores_[e] = bias + score(x, largest, sum);
    }
  }
  double of_expert(int64_t expert) const { return scores_[size(expert)]; }
  /// As kernels::RoutingOptions::groups: the sum of a group's two best.
  double of_group(int64_t group) const {
    const auto members = static_cast<int64_t>(scores_.size()) / router_.groups;
    std::vector<double> best(scores_.begin() + group * members,
                             scores_.begin() + (group + 1) * members);
    std::sort(best.rbegin(), best.rend());
    return best.size() == 1 ? best[0] : best[0] + best[1];
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  double score(double x, double largest, double sum) const {
    switch (router_.score) {
      case kernels::ScoreFunction::kSoftmax:
        return router_.softmax_before_topk ? std::exp(x - largest) / sum : x;
      case kernels::ScoreFunction::kSigmoid:
        return 1.0 / (1.0 + std::exp(-x));
      case kernels::ScoreFunction::kSqrtSoftplus:
        return std::sqrt(std::log1p(std::exp(-std::fabs(x))) + std::max(x, 0.0));
    }
    return x;
  }

  const moe::RouterConfig& router_;
  const Tensor& logits_;
  const Tensor& bias_;
  std::vector<double> scores_;
};

/// Those of `a` that are not in `b`.
std::vector<int64_t> without(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  std::erase_if(a, [&](int64_t x) { return std::find(b.begin(), b.end(), x) != b.end(); });
  return a;
}

template <typename ScoreOf>
double largest_gap(const std::vector<int64_t>& a, const std::vector<int64_t>& b,
                   const ScoreOf& score_of) {
  double gap = 0.0;
  for (const int64_t x : without(a, b)) {
    for (const int64_t y : without(b, a)) gap = std::max(gap, std::fabs(score_of(x) - score_of(y)));
  }
  return gap;
}

std::vector<int64_t> groups_of(const std::vector<int64_t>& experts, int64_t members) {
  std::vector<int64_t> groups;
  for (const int64_t expert : experts) groups.push_back(expert / members);
  return groups;
}

double swap_margin(const moe::MoeConfig& moe, const SelectionScores& scores,
                   const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const double experts = largest_gap(a, b, [&](int64_t e) { return scores.of_expert(e); });
  if (moe.router.groups <= 1) return experts;
  const int64_t members = moe.experts / moe.router.groups;
  const std::vector<int64_t> groups_a = groups_of(a, members), groups_b = groups_of(b, members);
  if (without(groups_a, groups_b).empty() || without(groups_b, groups_a).empty()) return experts;
  // Another group won: its experts come along, however far apart they are.
  return std::min(experts, largest_gap(groups_a, groups_b,
                                       [&](int64_t group) { return scores.of_group(group); }));
}

std::vector<int64_t> chosen(const Tensor& choices, int64_t token) {
  const int32_t* const ids = choices.data<int32_t>() + token * choices.dim(1);
  return {ids, ids + choices.dim(1)};
}

}  // namespace

EpCheckFlips find_flips(const config::Config& config, const EpCheckStep& one,
                        const EpCheckStep& other) {
  const size_t layers = config::decoder_config(config).moe_layers().size();
  SPILLWAY_CHECK(one.choices.size() == other.choices.size() && one.choices.size() % layers == 0,
                 "the runs have choices of ", one.choices.size(), " and ", other.choices.size(),
                 " layers; allowed: equal multiples of ", layers);
  const Tensor no_bias;
  EpCheckFlips flips;
  for (size_t begin = 0; begin < one.choices.size(); begin += layers) {
    bool found = false;
    for (size_t layer = 0; layer < layers && !found; ++layer) {
      const Tensor &a = one.choices[begin + layer], &b = other.choices[begin + layer];
      SelectionScores scores(config.moe.router, one.logits[begin + layer],
                             one.biases.empty() ? no_bias : one.biases[layer]);
      for (int64_t t = 0; t < a.dim(0); ++t) {
        std::vector<int64_t> at_one = chosen(a, t), at_other = chosen(b, t);
        if (without(at_one, at_other).empty()) continue;
        found = true;
        ++flips.tokens;
        scores.set_token(t);
        const double margin = swap_margin(config.moe, scores, at_one, at_other);
        if (flips.layer >= 0 && !(margin > flips.margin)) continue;
        flips.margin = margin;
        flips.layer = static_cast<int64_t>(layer);
      }
    }
  }
  return flips;
}

}  // namespace spillway::train
