#include "routing.h"

#include "no_index.h"
#include "parallel.h"
#include "reduction_chunks.h"
#include "scores.h"
#include "scratch.h"
#include "softmax_rows.h"
#include "topk.h"

namespace spillway::kernels::cpu {
namespace {

/// Calls f with the C++ type of f32 or f64, the only two that routing knows.
template <typename F>
void visit_accumulator(DType dtype, const F& f) {
  if (dtype == DType::kF64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

/// True when the weights are a softmax over the chosen logits. Probabilities divided by the sum of
/// the chosen ones are just that (the sum over all experts cancels), and taken from the logits they
/// cannot become 0 / 0 for ids whose probabilities underflow.
bool weights_over_chosen(const RoutingOptions& options, int64_t k) {
  return !options.softmax_before_topk || (options.normalize_topk && k > 1);
}

/// Scores that know one logit each have no such short cut; divided only when they are several.
bool divides_by_sum(const RoutingOptions& options, int64_t k) {
  return options.normalize_topk && k > 1;
}

template <typename A>
void fill_softmax_gate(const A* logits, const A* probs, const int32_t* ids, int64_t k,
                       const RoutingOptions& options, A* gate) {
  const A scale = static_cast<A>(options.scale);
  if (!weights_over_chosen(options, k)) {
    for (int64_t j = 0; j < k; ++j) gate[j] = ids[j] == kNoExpert ? A(0) : probs[ids[j]] * scale;
    return;
  }
  A largest = -std::numeric_limits<A>::infinity();
  for (int64_t j = 0; j < k; ++j) {
    if (ids[j] != kNoExpert && logits[ids[j]] > largest) largest = logits[ids[j]];
  }
  A sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    gate[j] = ids[j] == kNoExpert ? A(0) : fast_exp(logits[ids[j]] - largest);
    sum += gate[j];
  }
  for (int64_t j = 0; j < k; ++j) gate[j] = ids[j] == kNoExpert ? A(0) : gate[j] / sum * scale;
}

template <typename A>
void fill_score_gate(const A* scores, const int32_t* ids, int64_t k, const RoutingOptions& options,
                     A* gate) {
  A sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    gate[j] = ids[j] == kNoExpert ? A(0) : scores[ids[j]];
    sum += gate[j];
  }
  A factor = static_cast<A>(options.scale);
  if (divides_by_sum(options, k)) factor /= sum + static_cast<A>(kScoreSumGuard);
  for (int64_t j = 0; j < k; ++j) gate[j] *= factor;
}

/// The branch-free pass over all ids vectorises; a bad one is looked for only when there is one.
void check_expert_ids(const char* op, const Tensor& topk_idx, int64_t num_experts) {
  const int32_t* ids = topk_idx.data<int32_t>();
  int32_t lowest = 0, highest = kNoExpert;
#pragma omp simd reduction(min : lowest) reduction(max : highest)
  for (int64_t i = 0; i < topk_idx.numel(); ++i) {
    // Not std::min: gcc 12 does not vectorise a reduction through references.
    const int32_t id = ids[i];
    lowest = id < lowest ? id : lowest;
    highest = id > highest ? id : highest;
  }
  if (lowest >= kNoExpert && highest < num_experts) return;
  for (int64_t i = 0; i < topk_idx.numel(); ++i) {
    SPILLWAY_CHECK(ids[i] >= kNoExpert && ids[i] < num_experts, op, ": expert id ", ids[i],
                   " at position ", i, " of topk_idx ", topk_idx.shape(), ", it must be in [0, ",
                   num_experts, ") or -1");
  }
}

/// Chooses for one token; `best` [k] is scratch.
template <typename A>
void choose_row(const A* scores, const float* bias, int64_t num_experts, int64_t k,
                const RoutingOptions& options, const GroupScratch<A>& scratch, int32_t* ids,
                A* best) {
  auto choose = [&](const auto& score_of) {
    if (options.groups <= 1) return offer_topk(score_of, 0, num_experts, 0, k, ids, best);
    offer_topk_of_groups(score_of, num_experts, options.groups, options.topk_groups, k, ids, best,
                         scratch);
  };
  if (bias == nullptr) return choose([scores](int64_t e) { return scores[e]; });
  choose([scores, bias](int64_t e) { return scores[e] + static_cast<A>(bias[e]); });
}

/// Makes one token's probabilities, its choice and its weights.
template <typename A>
struct ForwardRow {
  const A* logits;
  const float* bias;  // may be null
  int32_t* ids;
  A* gate;
  A* probs;
  int64_t num_experts;
  int64_t k;

  void run(const RoutingOptions& options, bool choose, const GroupScratch<A>& scratch) const {
    const bool softmax = options.score == ScoreFunction::kSoftmax;
    if (softmax) {
      softmax_row(logits, num_experts, probs);
    } else {
      score_row(options.score, logits, num_experts, probs);
    }
    if (choose) {
      const A* const scores = softmax && !options.softmax_before_topk ? logits : probs;
      choose_row(scores, bias, num_experts, k, options, scratch, ids, gate);
    }
    if (softmax) return fill_softmax_gate(logits, probs, ids, k, options, gate);
    fill_score_gate(probs, ids, k, options, gate);
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < num_experts; ++e) sum += probs[e];
    const A divisor = sum + static_cast<A>(kScoreSumGuard);
#pragma omp simd
    for (int64_t e = 0; e < num_experts; ++e) probs[e] /= divisor;
  }
};

/// Probabilities of each token, its choice when `choose`, and its weights.
void fill_routing(Context& ctx, const RouteArgs& args, bool choose) {
  const int64_t num_experts = args.logits.dim(1);
  const int64_t k = args.topk_idx.dim(1);
  const RoutingOptions options = args.options;
  const int64_t groups = choose && options.groups > 1 ? options.groups : 0;
  visit_accumulator(args.logits.dtype(), [&]<typename A>() {
    const ForwardRow<A> first{.logits = args.logits.data<A>(),
                              .bias = args.bias.defined() ? args.bias.data<float>() : nullptr,
                              .ids = args.topk_idx.data<int32_t>(),
                              .gate = args.gate.data<A>(),
                              .probs = args.probs.data<A>(),
                              .num_experts = num_experts,
                              .k = k};
    parallel_ranges(ctx, args.logits.dim(0), 8 * num_experts,
                    [=, &ctx](int64_t begin, int64_t end) {
                      const ScratchArray<A> group_scores(ctx, 2 * groups);
                      const ScratchArray<int32_t> group_ids(ctx, groups);
                      const GroupScratch<A> scratch{group_scores.data(),
                                                    group_scores.data() + groups, group_ids.data()};
                      for (int64_t t = begin; t < end; ++t) {
                        ForwardRow<A> row = first;
                        row.logits += t * num_experts;
                        row.ids += t * k;
                        row.gate += t * k;
                        row.probs += t * num_experts;
                        row.run(options, choose, scratch);
                      }
                    });
  });
}

/// One token of route_backward. With w = gate / scale:
///   over the chosen: dlogit_j += w_j (g_j - sum_i w_i g_i), g = scale * d_gate;
///   probabilities:   dlogits = p (d - sum p d), d = d_probs + g at the chosen ids.
/// Scores s of one logit each, r = s' / s, p = s / sum s: dlogits = r times the sum of
///   weights:         w_j (g_j - sum_i w_i g_i), without the sum when they are not divided;
///   probabilities:   p (d_probs - sum p d_probs).
template <typename A>
struct BackwardRow {
  const A* d_gate;
  const A* d_probs;  // may be null
  const int32_t* ids;
  const A* gate;
  const A* probs;
  A* dlogits;
  int64_t num_experts;
  int64_t k;

  void run_softmax(bool over_chosen, A scale, A z_factor) const {
    for (int64_t e = 0; e < num_experts; ++e) dlogits[e] = d_probs != nullptr ? d_probs[e] : A(0);
    if (!over_chosen) {
      for (int64_t j = 0; j < k; ++j) {
        if (ids[j] != kNoExpert) dlogits[ids[j]] += scale * d_gate[j];
      }
    }
    A dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t e = 0; e < num_experts; ++e) dot += probs[e] * dlogits[e];
    const A shift = z_factor - dot;
#pragma omp simd
    for (int64_t e = 0; e < num_experts; ++e) dlogits[e] = probs[e] * (dlogits[e] + shift);
    if (over_chosen) add_chosen(true, scale);
  }

  void run_scores(ScoreFunction score, const A* logits, bool divided, A scale, A z_factor) const {
    A dot = 0;
    if (d_probs != nullptr) {
#pragma omp simd reduction(+ : dot)
      for (int64_t e = 0; e < num_experts; ++e) dot += probs[e] * d_probs[e];
    }
    for (int64_t e = 0; e < num_experts; ++e) {
      dlogits[e] = d_probs != nullptr ? probs[e] * (d_probs[e] - dot) : A(0);
    }
    add_chosen(divided, scale);
    for (int64_t e = 0; e < num_experts; ++e) dlogits[e] *= log_score_slope(score, logits[e]);
    if (z_factor == A(0)) return;
    const A largest = row_max(logits, num_experts);
    const A factor = z_factor / static_cast<A>(sum_exp(logits, num_experts, largest));
#pragma omp simd
    for (int64_t e = 0; e < num_experts; ++e) dlogits[e] += factor * fast_exp(logits[e] - largest);
  }

  /// dlogits_j += gate_j (d_gate_j - mean) at the chosen ids, mean 0 unless the weights were
  /// divided by their sum.
  void add_chosen(bool divided, A scale) const {
    if (scale == A(0)) return;
    A mean = 0;
    for (int64_t j = 0; divided && j < k; ++j) {
      if (ids[j] != kNoExpert) mean += gate[j] / scale * d_gate[j];
    }
    for (int64_t j = 0; j < k; ++j) {
      if (ids[j] != kNoExpert) dlogits[ids[j]] += gate[j] * (d_gate[j] - mean);
    }
  }
};

}  // namespace

void route(Context& ctx, const RouteArgs& args) { fill_routing(ctx, args, true); }

void route_given(Context& ctx, const RouteArgs& args) {
  check_expert_ids("route_given", args.topk_idx, args.logits.dim(1));
  fill_routing(ctx, args, false);
}

void route_backward(Context& ctx, const RouteBackwardArgs& args) {
  const int64_t num_experts = args.logits.dim(1);
  const int64_t k = args.topk_idx.dim(1);
  const ScoreFunction score = args.options.score;
  const bool over_chosen = weights_over_chosen(args.options, k);
  const bool divided = divides_by_sum(args.options, k);
  const double z_scale = args.z_scale;
  visit_accumulator(args.logits.dtype(), [&]<typename A>() {
    const A* logits = args.logits.data<A>();
    const BackwardRow<A> first{.d_gate = args.d_gate.data<A>(),
                               .d_probs = args.d_probs.defined() ? args.d_probs.data<A>() : nullptr,
                               .ids = args.topk_idx.data<int32_t>(),
                               .gate = args.gate.data<A>(),
                               .probs = args.probs.data<A>(),
                               .dlogits = args.dlogits.data<A>(),
                               .num_experts = num_experts,
                               .k = k};
    const A scale = static_cast<A>(args.options.scale);
    parallel_rows(ctx, args.logits.dim(0), 8 * num_experts, [=](int64_t t) {
      BackwardRow<A> row = first;
      row.d_gate += t * k;
      if (row.d_probs != nullptr) row.d_probs += t * num_experts;
      row.ids += t * k;
      row.gate += t * k;
      row.probs += t * num_experts;
      row.dlogits += t * num_experts;
      A z_factor = 0;
      if (z_scale != 0.0) {
        z_factor =
            static_cast<A>(2.0 * z_scale * log_sum_exp(logits + t * num_experts, num_experts));
      }
      if (score == ScoreFunction::kSoftmax) {
        row.run_softmax(over_chosen, scale, z_factor);
      } else {
        row.run_scores(score, logits + t * num_experts, divided, scale, z_factor);
      }
    });
  });
}

void count_experts(Context& ctx, const Tensor& topk_idx, Tensor& counts) {
  const int64_t num_experts = counts.dim(0);
  const int64_t numel = topk_idx.numel();
  // Neighbours count in histograms of their own: a load need not wait for the store just before.
  // Bin 0 of each is that of -1, the last one that of what is out of range.
  constexpr int64_t kParts = 4;
  const int64_t stride = num_experts + 2;
  const ScratchArray<int64_t> scratch(ctx, kParts * stride);
  int64_t* parts = scratch.data();
  std::fill_n(parts, kParts * stride, int64_t{0});
  const auto bad = static_cast<uint32_t>(num_experts + 1);
  const auto bin_of = [bad](int32_t id) { return std::min(static_cast<uint32_t>(id) + 1U, bad); };
  const int32_t* ids = topk_idx.data<int32_t>();
  const int64_t whole = numel - numel % kParts;
  for (int64_t i = 0; i < whole; i += kParts) {
    for (int64_t part = 0; part < kParts; ++part) ++parts[part * stride + bin_of(ids[i + part])];
  }
  for (int64_t i = whole; i < numel; ++i) ++parts[bin_of(ids[i])];
  const auto total = [=](int64_t bin) {
    int64_t sum = 0;
    for (int64_t part = 0; part < kParts; ++part) sum += parts[part * stride + bin];
    return sum;
  };
  if (total(num_experts + 1) != 0)
    check_expert_ids("count_experts", topk_idx, num_experts);  // throws
  int64_t* count = counts.data<int64_t>();
  for (int64_t e = 0; e < num_experts; ++e) count[e] = total(e + 1);
}

void column_sums(Context& ctx, const Tensor& probs, Tensor& sums, Tensor& partial) {
  sums.zero();
  if (probs.numel() == 0) return;
  const int64_t columns = probs.dim(1);
  const ReductionChunks chunks = row_chunks(probs.dim(0));
  double* part = partial.data<double>();
  visit_accumulator(probs.dtype(), [&]<typename T>() {
    const T* p = probs.data<T>();
    parallel_rows(ctx, chunks.count(), chunks.size * columns, [=](int64_t c) {
      double* out = part + c * columns;
      std::fill(out, out + columns, 0.0);
      for (int64_t r = chunks.begin(c); r < chunks.end(c); ++r) {
#pragma omp simd
        for (int64_t e = 0; e < columns; ++e)
          out[e] += static_cast<double>(widen(p[r * columns + e]));
      }
    });
  });
  double* total = sums.data<double>();
  for (int64_t c = 0; c < chunks.count(); ++c) {
    for (int64_t e = 0; e < columns; ++e) total[e] += part[c * columns + e];
  }
}

double z_loss_sum(Context& ctx, const Tensor& logits, Tensor& partial) {
  const int64_t num_experts = logits.dim(1);
  const ReductionChunks chunks = row_chunks(logits.dim(0));
  double* part = partial.data<double>();
  visit_accumulator(logits.dtype(), [&]<typename T>() {
    const T* x = logits.data<T>();
    parallel_rows(ctx, chunks.count(), 4 * chunks.size * num_experts, [=](int64_t c) {
      double sum = 0.0;
      for (int64_t t = chunks.begin(c); t < chunks.end(c); ++t) {
        const double lse = log_sum_exp(x + t * num_experts, num_experts);
        sum += lse * lse;
      }
      part[c] = sum;
    });
  });
  double total = 0.0;
  for (int64_t c = 0; c < chunks.count(); ++c) total += part[c];
  return total;
}

}  // namespace spillway::kernels::cpu
