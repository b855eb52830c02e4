#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/plan/drop_order.h"
#include "spillway/tensor/dtype.h"

namespace spillway::ep {

/// What all ranks of the world must agree on: compared field by field at bootstrap.
struct EpConfig {
  int64_t ep = 1;
  int64_t num_experts = 0;          ///< E of a layer; a multiple of ep
  int64_t hidden = 0;               ///< H
  int64_t top_k = 0;                ///< K, at most E
  int64_t alignment = 1;            ///< A: zones start at multiples of it; a power of two
  DType dtype = DType::kF32;        ///< of the rows
  int64_t max_tokens_per_rank = 0;  ///< bound of T, checked in prepare
  /// C of each MoE layer in slots: multiples of A, equal on every rank of the world.
  std::vector<int64_t> recv_capacity_per_rank;
  /// Overflow: drop (true) or, with both false, OverflowError on every rank of the group.
  bool drop_on_overflow = false;
  /// Overflow: enlarge this layer's buffer in this EP group at once, lossless.
  bool grow_on_overflow = false;
  double grow_margin = 0.0;  ///< added to a grown capacity, fraction of demand
  plan::DropOrder drop_order = plan::DropOrder::kTail;
  uint64_t drop_seed = 0;
  /// Kept gates of a token times (sum of its gates) / (sum of its kept gates), done at the source
  /// before rows are sent; the numerator is a constant in backward. Nothing where the latter is 0.
  bool renormalize_kept = false;
  /// Debug: the unspecified tail of receive buffers holds NaN, and handles' maps are checked.
  bool poison = false;
  /// Config key that an OverflowError tells the user to change.
  std::string capacity_key = "capacity.fixed.slots";
  /// Decoder index of each MoE layer, for messages; empty: 0, 1, ...
  std::vector<int64_t> layer_ids;
};

/// The largest receive capacity with which every index of a routing handle's maps, below
/// max_tokens_per_rank * top_k + capacity, fits 31 bits. Slots.
int64_t most_capacity(const EpConfig& config);

/// Throws ConfigError naming the field, its value and what is allowed. Refuses sizes at which the
/// largest capacity, or what the group can send to one rank at worst, is above most_capacity.
void validate(const EpConfig& config);

}  // namespace spillway::ep
