#pragma once
// The `capacity` section of the config: its keys, defaults, and the one field list that drives
// parsing, dumping and the detection of unknown keys.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "spillway/core/choice.h"

namespace spillway::capacity {

/// What happens when a rank's demand exceeds its capacity.
enum class OnOverflow { kFail, kDrop, kGrow, kSkip };
/// Whether each layer has a capacity of its own.
enum class Scope { kLayer, kModel };
/// Capacity during evaluation.
enum class EvalCapacity { kLossless, kSame };
/// What a change of capacity between two steps re-creates.
enum class Reconfigure { kBuffers, kCommunicator };

inline constexpr std::array<std::pair<std::string_view, OnOverflow>, 4> kOnOverflowChoices{{
    {"fail", OnOverflow::kFail},
    {"drop", OnOverflow::kDrop},
    {"grow", OnOverflow::kGrow},
    {"skip", OnOverflow::kSkip},
}};
inline constexpr std::array<std::pair<std::string_view, Scope>, 2> kScopeChoices{{
    {"layer", Scope::kLayer},
    {"model", Scope::kModel},
}};
inline constexpr std::array<std::pair<std::string_view, EvalCapacity>, 2> kEvalChoices{{
    {"lossless", EvalCapacity::kLossless},
    {"same", EvalCapacity::kSame},
}};
inline constexpr std::array<std::pair<std::string_view, Reconfigure>, 2> kReconfigureChoices{{
    {"buffers", Reconfigure::kBuffers},
    {"communicator", Reconfigure::kCommunicator},
}};

/// The capacity that an adaptive policy starts from: "worst_case" or {"factor": f}.
struct Initial {
  bool worst_case = true;
  double factor = 0;  ///< times the balanced demand; read only when not `worst_case`
};

/// `capacity.fixed`
struct FixedConfig {
  /// Slots of every layer's receive buffer, a multiple of `moe.alignment`. The default is only a
  /// place to start from: size it to the model.
  int64_t slots = 4096;
};

/// `capacity.factor`
struct FactorConfig {
  /// Capacity = factor times the balanced demand, rounded up to the alignment.
  double factor = 1.5;
};

/// `capacity.peak`
struct PeakConfig {
  /// Steps whose largest demand counts. Long enough to bridge the batch-to-batch noise.
  int64_t window_steps = 64;
  /// Head-room above that demand, as a fraction of it.
  double margin = 0.1;
  /// A smaller capacity is taken up only after this many decisions in a row asked for less.
  int64_t shrink_patience = 16;
};

/// The `capacity` section. `check` (check.h) validates it.
struct CapacityConfig {
  /// Who sizes the receive buffers: a name of the policy table (policy_table.h).
  std::string policy = "worst_case";
  FixedConfig fixed;
  FactorConfig factor;
  PeakConfig peak;
  /// "layer": each MoE layer has its own capacity; "model": all have the largest one wanted.
  Scope scope = Scope::kLayer;
  /// "fail": the job ends; "drop": assignments are dropped; "grow": the buffer grows at once;
  /// "skip": as drop, and the step updates nothing.
  OnOverflow on_overflow = OnOverflow::kFail;
  /// Capacity of adaptive policies until `warmup_steps` steps were observed.
  Initial initial;
  /// Optimizer steps that an adaptive policy only watches.
  int64_t warmup_steps = 20;
  /// Optimizer steps between two decisions.
  int64_t interval = 1;
  /// No capacity is below this many slots (rounded up to the alignment).
  int64_t min_slots = 0;
  /// Bytes that all receive buffers of a rank may take; 0 = no limit.
  int64_t max_bytes = 0;
  /// A buffer that grows in a step gets this fraction of the demand on top of the demand.
  double grow_margin = 0.1;
  /// "lossless": evaluation sizes buffers to the batch; "same": live capacity, with drops.
  EvalCapacity eval = EvalCapacity::kLossless;
  /// "buffers": a change of capacity keeps the communicator; "communicator": it makes a new one.
  Reconfigure reconfigure = Reconfigure::kBuffers;
};

/// Visits every key once, in the order of the documentation. V has
///   field(name, value&)              string, int64_t or double,
///   choice(name, enum&, choices)     an enum and its {name, value} pairs,
///   object(name, function(inner V&)) a nested object,
///   initial(name, Initial&)          "worst_case" or {"factor": f}.
template <class V>
void visit_fields(V& v, CapacityConfig& c) {
  v.field("policy", c.policy);
  v.object("fixed", [&](auto& inner) { inner.field("slots", c.fixed.slots); });
  v.object("factor", [&](auto& inner) { inner.field("factor", c.factor.factor); });
  v.object("peak", [&](auto& inner) {
    inner.field("window_steps", c.peak.window_steps);
    inner.field("margin", c.peak.margin);
    inner.field("shrink_patience", c.peak.shrink_patience);
  });
  v.choice("scope", c.scope, kScopeChoices);
  v.choice("on_overflow", c.on_overflow, kOnOverflowChoices);
  v.initial("initial", c.initial);
  v.field("warmup_steps", c.warmup_steps);
  v.field("interval", c.interval);
  v.field("min_slots", c.min_slots);
  v.field("max_bytes", c.max_bytes);
  v.field("grow_margin", c.grow_margin);
  v.choice("eval", c.eval, kEvalChoices);
  v.choice("reconfigure", c.reconfigure, kReconfigureChoices);
}

}  // namespace spillway::capacity
