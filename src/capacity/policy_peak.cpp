// "peak": the largest demand of a window of steps plus a margin. Grows at once, shrinks late: a
// buffer that follows every dip would overflow at the next rise.

#include "policies.h"
#include "spillway/core/error.h"
#include "spillway/plan/scaling.h"

namespace spillway::capacity {
namespace {

class Peak final : public Policy {
 public:
  explicit Peak(const PeakConfig& config) : config_(config) {}

  int64_t history_steps() const override { return config_.window_steps; }

  Wanted decide(const LayerHistory& history, const LayerFacts& facts) override {
    if (history.empty()) return {facts.capacity, "no demand seen yet"};
    // Patience counts wishes below one and the same capacity: a buffer that just changed (here, by
    // growing in a step, or with the other layers of the model) gets its full time.
    if (facts.capacity != watched_capacity_) {
      watched_capacity_ = facts.capacity;
      lower_in_a_row_ = 0;
    }
    const int64_t peak = history.max_of_last(config_.window_steps);
    const int64_t target =
        plan::scaled_slots(peak, 1 + config_.margin, facts.alignment, facts.worst_case_slots);
    const std::string reason =
        str("peak demand ", peak, " of ", history.size(), " steps, margin ", config_.margin);
    if (target >= facts.capacity) {
      lower_in_a_row_ = 0;
      return {target, reason};
    }
    // Saturates at the patience and keeps asking: under scope "model" another layer may still
    // need the larger size.
    if (lower_in_a_row_ < config_.shrink_patience) ++lower_in_a_row_;
    if (lower_in_a_row_ < config_.shrink_patience) {
      return {facts.capacity, str(reason, ", lower for ", lower_in_a_row_, " of ",
                                  config_.shrink_patience, " decisions")};
    }
    return {target, reason};
  }

  std::vector<double> state() const override {
    return {static_cast<double>(lower_in_a_row_), static_cast<double>(watched_capacity_)};
  }
  void restore(std::span<const double> state) override {
    SPILLWAY_CHECK(state.size() == 2, "the saved state of policy peak has ", state.size(),
                   " numbers; allowed: 2");
    lower_in_a_row_ = static_cast<int64_t>(state[0]);
    watched_capacity_ = static_cast<int64_t>(state[1]);
  }

 private:
  PeakConfig config_;
  int64_t lower_in_a_row_ = 0;    // decisions
  int64_t watched_capacity_ = 0;  // slots
};

}  // namespace

std::unique_ptr<Policy> make_peak(const CapacityConfig& config) {
  return std::make_unique<Peak>(config.peak);
}

}  // namespace spillway::capacity
