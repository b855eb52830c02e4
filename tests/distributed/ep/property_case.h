#pragma once
// Random cases of a dispatch: shapes, routing, gates, drop order, capacity. A case is drawn from
// its seed and the size of the world alone, so one that failed can be run again by itself.

#include <optional>
#include <string>
#include <vector>

#include "distributed/ep/property_reference.h"

namespace spillway::ep::test {

/// Most tokens of a rank; also the stride of global token indices.
inline constexpr int64_t kMostTokens = 257;

inline int64_t named_token(int64_t world_rank, int64_t t) { return world_rank * kMostTokens + t; }

/// What a case does once more after the pass that drops.
enum class SecondPass {
  kNone,
  kLossless,  ///< sizing of evaluation
  kGrow,      ///< the session grows where the first pass was sized kDrop
  kFail,      ///< OverflowError where the first pass was sized kDrop
};

struct PropertyCase {
  uint64_t seed = 0;
  EpConfig config;  ///< but for the capacities, which are drawn once the demand is known
  Call call;
  std::vector<int64_t> num_tokens;  ///< T of each rank of the world
  DType gate_dtype = DType::kF32;
  bool fused = false;
  SecondPass second = SecondPass::kNone;
};

PropertyCase draw_case(uint64_t seed, int world_size, plan::DropOrder order);

/// Expert ids (-1: none) and gates of one rank, [T*K].
std::vector<Choice> draw_choices(const PropertyCase& c, int world_rank);

/// Capacity of the layer of the case: below the highest demand of the world in about 6 of 10
/// cases, where alignment allows; the other layers get what they get.
void draw_capacities(PropertyCase& c, int64_t highest_demand);

std::string describe(const PropertyCase& c);

/// Gates as drawn, tokens that name themselves.
Batch batch_of(World& w, const PropertyCase& c, const std::vector<Choice>& choices);

}  // namespace spillway::ep::test
