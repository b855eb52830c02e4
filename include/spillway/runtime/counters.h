#pragma once
// What expert parallelism did, counted where it happens. Totals of one training step; the part
// that was spent in backward is kept beside them, and what saved dispatches spared it.

#include <cstdint>
#include <utility>

namespace spillway {

struct CounterSet {
  int64_t prepares = 0;             ///< count exchanges made by a `prepare` of its own
  int64_t fused_prepares = 0;       ///< count exchanges made inside `prepare_and_dispatch`
  int64_t forward_dispatches = 0;   ///< transports of rows and gates to the experts
  int64_t combines = 0;             ///< transports of expert outputs back to their tokens
  int64_t backward_transports = 0;  ///< `combine_backward` and `dispatch_backward`
  int64_t host_syncs = 0;           ///< times the host waited for counts of other ranks
  int64_t all_to_all_bytes = 0;     ///< payload sent to OTHER ranks by this rank

  friend bool operator==(const CounterSet&, const CounterSet&) = default;
  CounterSet& operator+=(const CounterSet& other) { return add(other, 1); }
  CounterSet& operator-=(const CounterSet& other) { return add(other, -1); }

 private:
  CounterSet& add(const CounterSet& other, int64_t sign) {
    prepares += sign * other.prepares;
    fused_prepares += sign * other.fused_prepares;
    forward_dispatches += sign * other.forward_dispatches;
    combines += sign * other.combines;
    backward_transports += sign * other.backward_transports;
    host_syncs += sign * other.host_syncs;
    all_to_all_bytes += sign * other.all_to_all_bytes;
    return *this;
  }
};

class Counters {
 public:
  /// Adds to a total, and to the backward part while a backward pass runs.
  void add(int64_t CounterSet::*field, int64_t amount = 1) {
    if (!enabled_) return;
    total_.*field += amount;
    if (in_backward_) backward_.*field += amount;
  }
  /// What a saved dispatch made unnecessary in backward: no part of the total.
  void avoid(const CounterSet& cost) {
    if (enabled_) avoided_ += cost;
  }
  const CounterSet& total() const { return total_; }
  const CounterSet& backward() const { return backward_; }
  const CounterSet& avoided() const { return avoided_; }
  void reset() { total_ = backward_ = avoided_ = CounterSet{}; }
  /// The tape says when backward runs; returns the former value.
  bool set_in_backward(bool value) { return std::exchange(in_backward_, value); }
  /// Evaluation is not counted; returns the former value.
  bool set_enabled(bool value) { return std::exchange(enabled_, value); }

 private:
  CounterSet total_, backward_, avoided_;
  bool in_backward_ = false;
  bool enabled_ = true;
};

}  // namespace spillway
