#include "spillway/train/run_summary.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace spillway::train {
namespace {

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string percent(double part, double whole) {
  return whole > 0.0 ? fixed(100.0 * part / whole, 2) + " %" : "none";
}

}  // namespace

RunSummary::RunSummary(int64_t total_steps, int64_t worst_case, int64_t balanced)
    : total_steps_(total_steps), worst_case_(worst_case), balanced_(balanced) {}

void RunSummary::add_step(const metrics::StepRecord& step,
                          const std::vector<metrics::EpStepRecord>& layers, int64_t assignments) {
  if (steps_ == 0) first_loss_ = step.loss;
  ++steps_;
  last_loss_ = step.loss;
  tokens_ += step.tokens;
  seconds_ += step.step_ms / 1000.0;
  skipped_ += step.skipped ? 1 : 0;
  assignments_ += assignments;
  mem_peak_bytes_ = std::max(mem_peak_bytes_, step.mem_peak_bytes);
  const bool late = step.step > total_steps_ - (total_steps_ + 3) / 4;
  for (const metrics::EpStepRecord& layer : layers) {
    const int64_t drops = layer.dropped_assignments.value_or(0);
    const double share = static_cast<double>(layer.capacity_end) /
                         static_cast<double>(std::max<int64_t>(1, worst_case_));
    dropped_ += drops;
    grow_events_ += layer.grow_events;
    peak_demand_ = std::max(peak_demand_, layer.max_total_recv_tokens);
    capacity_share_sum_ += share;
    ++share_count_;
    if (!late) continue;
    late_dropped_ += drops;
    late_grow_events_ += layer.grow_events;
    late_share_sum_ += share;
    ++late_share_count_;
  }
}

void RunSummary::add_reconfigure(const metrics::ReconfigureRecord& record) {
  if (record.kind == metrics::ReconfigureKind::kPolicy) ++reconfigurations_;
  reconfigure_ms_ += record.drain_ms + record.finalize_ms + record.init_ms + record.alloc_ms;
}

double RunSummary::last_quarter_capacity_share() const {
  return late_share_count_ == 0 ? 0.0 : late_share_sum_ / static_cast<double>(late_share_count_);
}

double RunSummary::seconds_a_step() const {
  return steps_ == 0 ? 0.0 : seconds_ / static_cast<double>(steps_);
}

std::string progress_line(const metrics::StepRecord& step, int64_t total_steps,
                          int64_t fullest_layer, double demand_over_capacity, int64_t dropped,
                          double seconds_left) {
  std::ostringstream out;
  out << "step " << step.step << "/" << total_steps << "  loss " << fixed(step.loss, 4) << "  "
      << static_cast<int64_t>(step.tokens_per_s) << " tokens/s";
  if (fullest_layer >= 0) {
    out << "  demand/capacity " << fixed(demand_over_capacity, 2) << " (layer " << fullest_layer
        << ")  dropped " << dropped;
  }
  if (step.skipped) out << "  SKIPPED";
  const auto seconds = static_cast<int64_t>(seconds_left + 0.5);
  out << "  ETA " << seconds / 60 << ":" << std::setw(2) << std::setfill('0') << seconds % 60;
  return out.str();
}

std::string RunSummary::text(const std::vector<std::string>& baselines) const {
  std::ostringstream out;
  if (steps_ == 0) return "Nothing was left to train.";
  out << "Trained " << steps_ << " steps on " << tokens_ << " tokens in " << fixed(seconds_, 1)
      << " s (" << static_cast<int64_t>(static_cast<double>(tokens_) / std::max(seconds_, 1e-9))
      << " tokens/s); loss " << fixed(first_loss_, 3) << " -> " << fixed(last_loss_, 3)
      << " nats a token.\n";
  if (skipped_ > 0) out << "Skipped steps: " << skipped_ << ".\n";
  if (eval_) {
    out << "Held-out loss " << fixed(eval_->loss, 4) << " nats a token over " << eval_->tokens
        << " tokens.\n";
  }
  for (const std::string& line : baselines) out << line << "\n";
  if (share_count_ > 0) {
    out << "Receive buffers: the worst case is " << worst_case_ << " slots a rank and layer, "
        << "perfect balance would need " << balanced_ << ".\n"
        << "  Highest demand of any rank, layer and micro-batch: " << peak_demand_ << " slots ("
        << fixed(static_cast<double>(peak_demand_) /
                     static_cast<double>(std::max<int64_t>(1, balanced_)),
                 2)
        << " x balanced).\n"
        << "  Capacity held, share of the worst case: "
        << percent(capacity_share_sum_, static_cast<double>(share_count_)) << " over the run, "
        << percent(late_share_sum_, static_cast<double>(late_share_count_))
        << " over the last quarter.\n"
        << "  Dropped assignments: " << dropped_ << " of " << assignments_ << " ("
        << percent(static_cast<double>(dropped_), static_cast<double>(assignments_)) << "), "
        << late_dropped_ << " in the last quarter.\n"
        << "  Buffers grew " << grow_events_ << " times within a step (" << late_grow_events_
        << " in the last quarter); the policy changed a capacity " << reconfigurations_
        << " times, at a cost of " << fixed(reconfigure_ms_, 1) << " ms in all.\n";
  }
  out << "Peak memory of a rank: " << fixed(static_cast<double>(mem_peak_bytes_) / 1048576.0, 1)
      << " MiB of tensors.";
  return out.str();
}

}  // namespace spillway::train
