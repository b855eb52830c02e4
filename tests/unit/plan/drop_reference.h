#pragma once
// The drop orders by their definition: every assignment of a rank is listed, the list is sorted and
// its longest prefix that fits is found one row at a time. Slow, readable, with no code of the
// planner but the hash step.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::plan::reference {

/// A gate rounded to bf16, to nearest, ties to even. Finite gates only.
inline float round_to_bf16(float gate) {
  const auto bits = std::bit_cast<uint32_t>(gate);
  const uint32_t half = 0x7fffu + ((bits >> 16) & 1);
  return std::bit_cast<float>((bits + half) & 0xffff0000u);
}

struct Assignment {
  int64_t local, source, ordinal;  // expert of the rank, source rank, index within the two
  int64_t index = 0;               // among the source's rows for this rank, in tail order
  float gate = 0;                  // as the router gave it

  bool operator<(const Assignment& other) const {  // tail order
    return std::tie(local, source, ordinal) < std::tie(other.local, other.source, other.ordinal);
  }
};

/// A routing as T tokens of each source would cause it: tokens pick distinct experts.
struct Routing {
  CountMatrix matrix;
  std::vector<std::vector<float>> gates;  // [ep * E] cells, source-major, each in token order

  /// The rows of one rank, in tail order.
  std::vector<Assignment> rows_of(int64_t rank) const {
    const int64_t experts_per_rank = matrix.experts_per_rank();
    std::vector<int64_t> next(static_cast<size_t>(matrix.ep), 0);
    std::vector<Assignment> rows;
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      for (int64_t source = 0; source < matrix.ep; ++source) {
        const int64_t expert = rank * experts_per_rank + local;
        for (int64_t i = 0; i < matrix.at(source, expert); ++i) {
          const auto cell = static_cast<size_t>(source * matrix.num_experts + expert);
          rows.push_back({local, source, i, next[static_cast<size_t>(source)]++,
                          gates.empty() ? 0.0f : gates[cell][static_cast<size_t>(i)]});
        }
      }
    }
    return rows;
  }
};

/// The key of order kRandom, from its definition.
inline uint64_t random_key(const DropRule& rule, int64_t expert, const Assignment& row) {
  uint64_t state = 0;
  for (const int64_t word : {static_cast<int64_t>(rule.seed), rule.step, rule.micro_batch,
                             rule.layer, expert, row.source, row.ordinal}) {
    state = hash_chain(state, static_cast<uint64_t>(word));
  }
  return state;
}

/// Sorts rows from tail order into the order of the rule.
inline void sort_rows(const CountMatrix& matrix, int64_t rank, const DropRule& rule,
                      std::vector<Assignment>& rows) {
  const int64_t first_expert = rank * matrix.experts_per_rank();
  std::vector<int64_t> num_rows(static_cast<size_t>(matrix.ep), 0);  // n_s
  for (const Assignment& row : rows) ++num_rows[static_cast<size_t>(row.source)];
  const auto of_source = [&](const Assignment& row) {
    return num_rows[static_cast<size_t>(row.source)];
  };
  switch (rule.order) {
    case DropOrder::kTail:
      std::sort(rows.begin(), rows.end());
      return;
    case DropOrder::kFair:
      std::sort(rows.begin(), rows.end(), [&](const Assignment& a, const Assignment& b) {
        const int64_t key_a = (2 * a.index + 1) * of_source(b);
        const int64_t key_b = (2 * b.index + 1) * of_source(a);
        if (key_a != key_b) return key_a < key_b;
        return (a.source + rule.step) % matrix.ep < (b.source + rule.step) % matrix.ep;
      });
      return;
    case DropOrder::kRandom: {
      std::vector<std::pair<uint64_t, Assignment>> keyed;
      for (const Assignment& row : rows) {
        keyed.emplace_back(random_key(rule, first_expert + row.local, row), row);
      }
      std::sort(keyed.begin(), keyed.end());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = keyed[i].second;
      return;
    }
    case DropOrder::kScore:
      std::stable_sort(rows.begin(), rows.end(), [](const Assignment& a, const Assignment& b) {
        return round_to_bf16(a.gate) > round_to_bf16(b.gate);
      });
      return;
  }
}

/// Length of the longest prefix whose padded zones fit.
inline size_t longest_prefix(const std::vector<Assignment>& rows, int64_t experts_per_rank,
                             int64_t capacity, int64_t alignment) {
  std::vector<int64_t> zone_rows(static_cast<size_t>(experts_per_rank), 0);
  for (size_t length = 0; length < rows.size(); ++length) {
    ++zone_rows[static_cast<size_t>(rows[length].local)];
    int64_t slots = 0;
    for (const int64_t zone : zone_rows) slots += round_up(zone, alignment);
    if (slots > capacity) return length;
  }
  return rows.size();
}

/// Assignments kept, each as (source, local expert, ordinal).
using KeptSet = std::set<std::tuple<int64_t, int64_t, int64_t>>;

inline KeptSet kept_set(const std::vector<Assignment>& rows, size_t prefix) {
  KeptSet kept;
  for (size_t i = 0; i < prefix; ++i) kept.insert({rows[i].source, rows[i].local, rows[i].ordinal});
  return kept;
}

/// What a source makes of KeptRows: `key_of` is asked only where rows are kept by key.
inline KeptSet apply(const KeptRows& rows, const std::vector<Assignment>& tail_order,
                     int64_t experts_per_rank,
                     const std::function<uint64_t(const Assignment&)>& key_of) {
  KeptSet kept;
  std::vector<int64_t> seen_at_cut(rows.kept.size(), 0);
  for (const Assignment& row : tail_order) {
    const auto cell = static_cast<size_t>(row.source * experts_per_rank + row.local);
    bool keep = row.ordinal < rows.kept[cell];
    if (rows.by_key) {
      const uint64_t key = key_of(row);
      keep = key < rows.cut || (key == rows.cut && seen_at_cut[cell]++ < rows.at_cut[cell]);
    }
    if (keep) kept.insert({row.source, row.local, row.ordinal});
  }
  return kept;
}

enum class Skew { kUniform, kHotExpert, kHotRank, kUnequalSources, kOneSource };

struct RoutingShape {
  int64_t max_ep = 8, max_experts_per_rank = 8, max_tokens = 257;
  int gate_levels = 0;  // distinct gates; 0: none
};

/// Gates with many ties: `levels` values a third of a bf16 step apart, so that rounding merges
/// some, from 1/2 on, and the same around a power of 1/4; some are 0 or negative. 0 without levels.
inline float random_gate(Rng& rng, int levels) {
  if (levels == 0 || rng.below(32) == 0) return 0;
  const auto level = static_cast<float>(rng.below(static_cast<uint64_t>(levels)));
  const float gate = 0.5f + level * 0x1p-8f / 3.0f;
  const float scale = std::ldexp(1.0f, -2 * static_cast<int>(rng.below(4)));
  return rng.below(16) == 0 ? -gate * scale : gate * scale;
}

/// A random routing. Sources have different numbers of tokens, some none.
inline Routing random_routing(Rng& rng, const RoutingShape& shape, Skew skew) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(rng.below(static_cast<uint64_t>(n)));
  };
  const int64_t ep = int64_t{1} << below(std::bit_width(static_cast<uint64_t>(shape.max_ep)));
  const int64_t experts_per_rank = 1 + below(shape.max_experts_per_rank);
  const int64_t num_experts = ep * experts_per_rank;
  const int64_t top_k = 1 + below(std::min<int64_t>(num_experts, 4));
  const int64_t hot = below(num_experts), only = below(ep);
  Routing routing{{ep, num_experts, std::vector<int64_t>(static_cast<size_t>(ep * num_experts))},
                  std::vector<std::vector<float>>(static_cast<size_t>(ep * num_experts))};
  const int64_t most = rng.below(4) == 0 ? shape.max_tokens : shape.max_tokens / 8;
  for (int64_t source = 0; source < ep; ++source) {
    int64_t tokens = rng.below(8) == 0 ? 0 : below(most + 1);
    if (skew == Skew::kUnequalSources) tokens >>= below(6);
    if (skew == Skew::kOneSource && source != only) tokens = 0;
    for (int64_t token = 0; token < tokens; ++token) {
      std::set<int64_t> chosen;
      for (int64_t k = 0; k < top_k; ++k) {
        int64_t expert = below(num_experts);
        if (skew == Skew::kHotExpert && rng.below(2) == 0) expert = hot;
        if (skew == Skew::kHotRank && rng.below(4) != 0) {
          expert = hot / experts_per_rank * experts_per_rank + below(experts_per_rank);
        }
        if (!chosen.insert(expert).second) continue;  // a choice of -1
        const auto cell = static_cast<size_t>(source * num_experts + expert);
        ++routing.matrix.counts[cell];
        routing.gates[cell].push_back(random_gate(rng, shape.gate_levels));
      }
    }
  }
  return routing;
}

/// Half of the time at least the demand, else anything below it from 0 on (or 0 without demand).
inline int64_t random_capacity(Rng& rng, int64_t demand, int64_t alignment) {
  const int64_t blocks = demand / alignment;
  if (blocks == 0 || rng.below(2) == 0) {
    return demand + alignment * static_cast<int64_t>(rng.below(3));
  }
  return alignment * static_cast<int64_t>(rng.below(static_cast<uint64_t>(blocks)));
}

}  // namespace spillway::plan::reference
