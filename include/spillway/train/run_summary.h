#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/metrics/records.h"
#include "spillway/train/step_report.h"

namespace spillway::train {

/// The story of a run for its last screen; gathered on rank 0 as the steps go by.
class RunSummary {
 public:
  /// `total_steps` fixes the last quarter; `worst_case` and `balanced` slots of a MoE layer.
  RunSummary(int64_t total_steps, int64_t worst_case, int64_t balanced);

  void add_step(const metrics::StepRecord& step, const std::vector<metrics::EpStepRecord>& layers,
                int64_t assignments);
  void add_reconfigure(const metrics::ReconfigureRecord& record);
  void set_eval(const metrics::EvalRecord& eval) { eval_ = eval; }

  /// Mean over steps and layers of capacity / worst case in the last quarter; 0 without experts.
  double last_quarter_capacity_share() const;
  int64_t last_quarter_dropped() const { return late_dropped_; }
  int64_t total_dropped() const { return dropped_; }
  /// Mean wall time of a step so far.
  double seconds_a_step() const;
  /// Plain words, several lines. `baselines`: lines about what the loss compares with.
  std::string text(const std::vector<std::string>& baselines) const;

 private:
  int64_t total_steps_, worst_case_, balanced_;
  int64_t steps_ = 0, tokens_ = 0, assignments_ = 0, dropped_ = 0, late_dropped_ = 0;
  int64_t grow_events_ = 0, late_grow_events_ = 0, reconfigurations_ = 0, skipped_ = 0;
  int64_t peak_demand_ = 0, mem_peak_bytes_ = 0;
  double capacity_share_sum_ = 0.0, late_share_sum_ = 0.0, reconfigure_ms_ = 0.0;
  int64_t share_count_ = 0, late_share_count_ = 0;
  double seconds_ = 0.0, first_loss_ = 0.0, last_loss_ = 0.0;
  std::optional<metrics::EvalRecord> eval_;
};

/// The line on the console: step, loss, tokens/s, the fullest layer, drops, time left.
std::string progress_line(const metrics::StepRecord& step, int64_t total_steps,
                          int64_t fullest_layer, double demand_over_capacity, int64_t dropped,
                          double seconds_left);

}  // namespace spillway::train
