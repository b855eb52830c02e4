#pragma once
// What decides the capacity of a layer. A policy is a plug-in: one class in one file
// (src/capacity/policy_x.cpp) and one row of the table (policy_table.h).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spillway/capacity/layer_history.h"

namespace spillway::capacity {

/// What is known of a layer, in slots; equal on every rank of the world.
struct LayerFacts {
  int64_t alignment = 1;         ///< A, a power of two
  int64_t worst_case_slots = 0;  ///< at N = ep * max_tokens_per_rank; a multiple of A
  int64_t balanced_slots = 0;    ///< at the same N, at most the worst case
  int64_t capacity = 0;          ///< in force now; filled by the controller
};

/// A wish, before the controller's clamp to [max(A, min_slots), worst case].
struct Wanted {
  int64_t slots = 0;
  std::string reason;  ///< a few words for the `reconfigure` line of the metrics
};

/// Decides for ONE layer: the controller makes an instance a layer. Deterministic, and fed with
/// world-reduced demand only, so that every rank decides the same.
class Policy {
 public:
  virtual ~Policy() = default;

  /// The capacity that the layer should have from the next step on. Called once a decision; a
  /// policy that is not adaptive (policy_table.h) is asked once, at the start, with an empty
  /// history.
  virtual Wanted decide(const LayerHistory& history, const LayerFacts& facts) = 0;
  /// Steps of history that `decide` looks at.
  virtual int64_t history_steps() const { return 0; }

  /// What `decide` remembers between two calls, for the checkpoint; `restore` takes the same
  /// numbers back and throws when there are more or fewer.
  virtual std::vector<double> state() const { return {}; }
  virtual void restore(std::span<const double> state);
};

}  // namespace spillway::capacity
