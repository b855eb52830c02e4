#pragma once
// Routing in double, written to be read: what tests of the router's kernels compare with.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "spillway/kernels/routing.h"
#include "support/kernel_test.h"

namespace spillway::kernels {

inline const char* score_name(ScoreFunction score) {
  switch (score) {
    case ScoreFunction::kSoftmax:
      return "softmax";
    case ScoreFunction::kSigmoid:
      return "sigmoid";
    case ScoreFunction::kSqrtSoftplus:
      return "sqrtsoftplus";
  }
  return "?";
}

using Row = std::vector<double>;

inline Row reference_scores(const Row& logits, ScoreFunction score) {
  Row scores;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double x : logits) {
    switch (score) {
      case ScoreFunction::kSoftmax:
        scores.push_back(std::exp(x - largest));
        break;
      case ScoreFunction::kSigmoid:
        scores.push_back(1.0 / (1.0 + std::exp(-x)));
        break;
      case ScoreFunction::kSqrtSoftplus:
        scores.push_back(std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)))));
        break;
    }
    sum += scores.back();
  }
  if (score == ScoreFunction::kSoftmax) {
    for (double& s : scores) s /= sum;
  }
  return scores;
}

/// Ids of the largest `k` of `values` among `candidates` (ascending), by a full sort.
inline std::vector<int32_t> largest(const Row& values, std::vector<int32_t> candidates, int64_t k) {
  std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  candidates.resize(static_cast<size_t>(k));
  return candidates;
}

inline std::vector<int32_t> first_integers(int64_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

inline std::vector<int32_t> reference_choice(const Row& biased, const RoutingOptions& options,
                                             int64_t k) {
  const auto num_experts = static_cast<int64_t>(biased.size());
  if (options.groups <= 1) return largest(biased, first_integers(num_experts), k);
  const int64_t size = num_experts / options.groups;
  Row group_scores;
  for (int64_t g = 0; g < options.groups; ++g) {
    Row members(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(members[0] + (size > 1 ? members[1] : 0.0));
  }
  const auto groups = largest(group_scores, first_integers(options.groups), options.topk_groups);
  std::vector<int32_t> candidates;
  for (int32_t e = 0; e < num_experts; ++e) {
    if (std::find(groups.begin(), groups.end(), e / size) != groups.end()) candidates.push_back(e);
  }
  return largest(biased, candidates, k);
}

inline Row row_of(const Tensor& t, int64_t row) {
  const Row all = testing::to_doubles(t);
  return {all.begin() + row * t.dim(1), all.begin() + (row + 1) * t.dim(1)};
}

/// Everything that a route call makes from logits.
struct Routed {
  Routed(Context& ctx, const Tensor& logits, int64_t top_k)
      : ids(Tensor::zeros(ctx, {logits.dim(0), top_k}, DType::kI32)),
        gate(Tensor::zeros(ctx, {logits.dim(0), top_k}, logits.dtype())),
        probs(Tensor::zeros(ctx, logits.shape(), logits.dtype())) {}
  RouteArgs args(const Tensor& logits, const RoutingOptions& options, const Tensor& bias = {}) {
    return {.logits = logits,
            .options = options,
            .topk_idx = ids,
            .gate = gate,
            .probs = probs,
            .bias = bias};
  }
  std::vector<int32_t> choice(int64_t token) const {
    const int32_t* first = ids.data<int32_t>() + token * ids.dim(1);
    return {first, first + ids.dim(1)};
  }
  Tensor ids, gate, probs;
};

inline constexpr ScoreFunction kAllScores[] = {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
                                               ScoreFunction::kSqrtSoftplus};

}  // namespace spillway::kernels
