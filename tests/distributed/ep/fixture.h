#pragma once
// Batches whose right answer is a closed form of the global token index, and a slow, readable
// reference of what a dispatch must do, made over a plain all-gather of the router's choices.
//
// T tokens here, K experts a token, E experts, L experts a rank, H hidden, A alignment, C slots.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/ep/session.h"
#include "spillway/plan/sizing.h"
#include "support/kernel_test.h"

namespace spillway::ep::test {

using spillway::testing::element;
using spillway::testing::error_of;
using spillway::testing::same_bytes;
using spillway::testing::set_element;

/// Every rank of the world skips alike, and says why.
#define SKIP_UNLESS_EP_FITS(ep_size)                                                              \
  if (World::size() % (ep_size) != 0) {                                                           \
    GTEST_SKIP() << "needs a world that is a multiple of ep = " << (ep_size) << "; this one has " \
                 << World::size();                                                                \
  }                                                                                               \
  static_assert(true)

inline constexpr int64_t kExperts = 8;
inline constexpr int64_t kHidden = 8;
inline constexpr int64_t kTokens = 16;     // a rank, where the routing does not say otherwise
inline constexpr int64_t kMaxTokens = 24;  // of the config; also the stride of global indices

struct World {
  explicit World(int ep) : topology(*world, ep), session(ctx, topology) {}
  static int size() { return comm::make_mpi_world()->size(); }
  int rank() const { return world->rank(); }
  int first_rank() const { return rank() - topology.ep_rank(); }  // of this EP group

  std::unique_ptr<comm::Communicator> world = comm::make_mpi_world();
  Context ctx;
  comm::Topology topology;
  Session session;
};

inline int64_t worst_case(const EpConfig& config) {
  return plan::worst_case_slots(config.ep * config.max_tokens_per_rank, config.top_k,
                                config.num_experts / config.ep, config.alignment);
}

/// Lossless, one layer.
inline EpConfig make_config(int ep, int64_t top_k = 2, int64_t alignment = 1,
                            DType dtype = DType::kF32) {
  EpConfig config{.ep = ep,
                  .num_experts = kExperts,
                  .hidden = kHidden,
                  .top_k = top_k,
                  .alignment = alignment,
                  .dtype = dtype,
                  .max_tokens_per_rank = kMaxTokens};
  config.recv_capacity_per_rank = {worst_case(config)};
  return config;
}

enum class Routing {
  kUniform,
  kHotExpert,     ///< every token chooses expert 0
  kHotRank,       ///< the experts of rank 0 before all others
  kEmptyExperts,  ///< only experts of even number
  kHoles,         ///< a third of the entries are -1, and some tokens have none at all
  kZeroRank,      ///< the last rank of the world has no tokens
  kAllZero,       ///< nobody has
  kUnequal,       ///< another T on every rank
};

inline int64_t tokens_on(Routing routing, int world_rank, int world_size) {
  switch (routing) {
    case Routing::kZeroRank:
      return world_rank == world_size - 1 ? 0 : kTokens;
    case Routing::kAllZero:
      return 0;
    case Routing::kUnequal:
      return 3 + 7 * world_rank % 22;
    default:
      return kTokens;
  }
}

/// The K expert ids of a global token.
inline std::vector<int32_t> choose(Routing routing, int64_t token, const EpConfig& config,
                                   uint64_t seed) {
  Rng rng(seed, static_cast<uint64_t>(token));
  std::vector<int32_t> experts(static_cast<size_t>(config.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  const auto shuffle = [&](size_t begin, size_t end) {
    for (size_t i = end; i > begin + 1; --i) {
      std::swap(experts[i - 1], experts[begin + rng.below(i - begin)]);
    }
  };
  const auto experts_per_rank = static_cast<size_t>(config.num_experts / config.ep);
  if (routing == Routing::kHotExpert) {
    shuffle(1, experts.size());
  } else if (routing == Routing::kHotRank) {
    shuffle(0, experts_per_rank);
    shuffle(experts_per_rank, experts.size());
  } else if (routing == Routing::kEmptyExperts) {
    std::stable_partition(experts.begin(), experts.end(), [](int32_t e) { return e % 2 == 0; });
    shuffle(0, experts.size() / 2);
  } else {
    shuffle(0, experts.size());
  }
  experts.resize(static_cast<size_t>(config.top_k));
  if (routing == Routing::kHoles) {
    for (int32_t& expert : experts) {
      if (token % 5 == 0 || rng.below(3) == 0) expert = -1;
    }
  }
  return experts;
}

inline int64_t global_token(int world_rank, int64_t t) { return world_rank * kMaxTokens + t; }

/// Integers from 0 to 15, exact in bf16. The first four columns are the base-16 digits of the
/// token's index: a misplaced row names itself.
inline float token_value(int64_t token, int64_t h) {
  if (h < 4) return static_cast<float>(token >> (4 * h) & 15);
  return static_cast<float>((token * 7 + h * 5) % 16);
}

/// 1 or 2, so that sums of K products stay exact in bf16 (8 * 2 * 15 < 256).
inline float gate_value(int64_t token, int64_t k) {
  return static_cast<float>(1 + (token + k) % 2);
}

template <typename Value>
Tensor fill(Context& ctx, Shape shape, DType dtype, Value&& value) {
  Tensor x = Tensor::empty(ctx, shape, dtype);
  const int64_t columns = shape[-1];
  for (int64_t i = 0; i < x.numel(); ++i) set_element(x, i, value(i / columns, i % columns));
  return x;
}

struct Batch {
  Tensor topk_idx;  // [T,K]
  Tensor gate;      // [T,K]
  Tensor tokens;    // [T,H]

  PrepareArgs args(int64_t layer = 0, Sizing sizing = Sizing::kLive) const {
    return {.call = {.layer = layer}, .topk_idx = topk_idx, .gate = gate, .sizing = sizing};
  }
};

inline Batch make_batch(World& w, const EpConfig& config, Routing routing, uint64_t seed = 1) {
  const int64_t num_tokens = tokens_on(routing, w.rank(), w.world->size());
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (const int32_t id : choose(routing, global_token(w.rank(), t), config, seed)) {
      ids.push_back(id);
    }
  }
  return {Tensor::from<int32_t>(w.ctx, {num_tokens, config.top_k}, ids),
          fill(w.ctx, {num_tokens, config.top_k}, DType::kF32,
               [&](int64_t t, int64_t k) { return gate_value(global_token(w.rank(), t), k); }),
          fill(w.ctx, {num_tokens, config.hidden}, config.dtype,
               [&](int64_t t, int64_t h) { return token_value(global_token(w.rank(), t), h); })};
}

/// One assignment and, when kept, its slot.
struct Assignment {
  int64_t expert;  // of the receiving rank, local
  int64_t source;  // rank of the group
  int64_t t;
  int64_t k;
  int64_t slot = -1;
};

struct RankReference {
  std::vector<Assignment> assignments;  // routed here, in tail order; the first num_kept are kept
  size_t num_kept = 0;
  int64_t demand = 0;
  std::vector<int64_t> token_counts, slot_counts, zone_begin;

  int64_t dropped() const { return static_cast<int64_t>(assignments.size() - num_kept); }
};

inline int64_t slots_of_prefix(const std::vector<Assignment>& assignments, size_t length,
                               int64_t experts_per_rank, int64_t alignment) {
  int64_t slots = 0;
  for (int64_t expert = 0; expert < experts_per_rank; ++expert) {
    const auto rows = std::count_if(assignments.begin(),
                                    assignments.begin() + static_cast<std::ptrdiff_t>(length),
                                    [&](const Assignment& a) { return a.expert == expert; });
    slots += round_up(rows, alignment);
  }
  return slots;
}

/// All that the ranks of this group must receive at capacity C, one entry a rank.
inline std::vector<RankReference> make_reference(World& w, const EpConfig& config,
                                                 const Tensor& topk_idx, int64_t capacity) {
  constexpr int32_t kAbsent = -2;
  std::vector<int32_t> mine(static_cast<size_t>(kMaxTokens * config.top_k), kAbsent);
  std::copy_n(topk_idx.data<int32_t>(), topk_idx.numel(), mine.begin());
  std::vector<int32_t> all(mine.size() * static_cast<size_t>(config.ep));
  w.topology.ep_group().all_gather(mine.data(), all.data(),
                                   static_cast<int64_t>(mine.size() * sizeof(int32_t)));
  const int64_t experts_per_rank = config.num_experts / config.ep;
  std::vector<RankReference> ranks(static_cast<size_t>(config.ep));
  for (int64_t rank = 0; rank < config.ep; ++rank) {
    RankReference& here = ranks[static_cast<size_t>(rank)];
    for (int64_t expert = 0; expert < experts_per_rank; ++expert) {
      for (int64_t source = 0; source < config.ep; ++source) {
        for (int64_t i = 0; i < kMaxTokens * config.top_k; ++i) {
          const int64_t id =
              all[static_cast<size_t>(source) * mine.size() + static_cast<size_t>(i)];
          if (id != rank * experts_per_rank + expert) continue;
          here.assignments.push_back({expert, source, i / config.top_k, i % config.top_k});
        }
      }
    }
    const auto slots = [&](size_t length) {
      return slots_of_prefix(here.assignments, length, experts_per_rank, config.alignment);
    };
    here.demand = slots(here.assignments.size());
    here.num_kept = here.assignments.size();
    while (slots(here.num_kept) > capacity) --here.num_kept;
    int64_t begin = 0;
    for (int64_t expert = 0; expert < experts_per_rank; ++expert) {
      here.zone_begin.push_back(begin);
      int64_t rows = 0;
      for (size_t i = 0; i < here.num_kept; ++i) {
        if (here.assignments[i].expert == expert) here.assignments[i].slot = begin + rows++;
      }
      here.token_counts.push_back(rows);
      here.slot_counts.push_back(round_up(rows, config.alignment));
      begin += here.slot_counts.back();
    }
  }
  return ranks;
}

/// A capacity that overflows under most routings: half of balanced, at least one zone.
inline int64_t tight_capacity(const EpConfig& config) {
  const int64_t balanced = ceil_div(config.ep * kTokens * config.top_k, config.ep);
  return std::max(config.alignment, round_down(balanced / 2, config.alignment));
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && same_bytes(a, b);
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}

}  // namespace spillway::ep::test
