#pragma once
// Turns the reports of all ranks into the `ep`, `ep_step` and `counters` lines.

#include <cstdint>
#include <vector>

#include "spillway/metrics/records.h"
#include "spillway/train/step_report.h"

namespace spillway::train {

/// What the lines need to know besides the reports.
struct EpMetricsContext {
  int64_t ep = 1;
  int64_t dp = 1;
  int64_t num_experts = 0;
  int64_t top_k = 1;
  int64_t alignment = 1;
  int64_t epoch = 0;                     ///< of the session when the step began
  std::vector<int64_t> layer_ids;        ///< decoder index of each MoE layer
  std::vector<int64_t> capacity;         ///< of each MoE layer when the step began
  int64_t capacity_sized_row_bytes = 0;  ///< bytes of all tensors with C rows, for one row
};

/// A line a (micro-batch, MoE layer), in the order in which they ran.
std::vector<metrics::EpRecord> ep_records(const std::vector<RankReport>& reports, int64_t step,
                                          const EpMetricsContext& context);
/// A line a MoE layer.
std::vector<metrics::EpStepRecord> ep_step_records(const std::vector<RankReport>& reports,
                                                   int64_t step, const EpMetricsContext& context);
/// A line of kind "grow" for every buffer that an EP group enlarged within the step.
std::vector<metrics::ReconfigureRecord> grow_records(const std::vector<metrics::EpRecord>& lines);
metrics::CountersRecord counters_record(const std::vector<RankReport>& reports,
                                        const StepAgreement& agreement, int64_t step);

}  // namespace spillway::train
