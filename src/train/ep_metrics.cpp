#include "spillway/train/ep_metrics.h"

#include <algorithm>
#include <map>
#include <utility>

#include "spillway/plan/sizing.h"

namespace spillway::train {
namespace {

using metrics::EpRecord;
using metrics::EpStepRecord;

void append(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// One line: group ledgers from the first rank of each EP group, the sources' own numbers from
/// every rank.
EpRecord ep_record(const std::vector<RankReport>& reports, size_t index, int64_t step,
                   const EpMetricsContext& c) {
  const moe::LayerRecord& first = reports.front().layers[index];
  EpRecord line;
  line.step = step;
  line.micro_batch = first.micro_batch;
  line.layer = c.layer_ids[static_cast<size_t>(first.moe_layer)];
  line.epoch = c.epoch;
  line.capacity = c.capacity[static_cast<size_t>(first.moe_layer)];
  line.recv_assignments.emplace();
  line.slot_counts_sum.emplace();
  line.dropped_assignments.emplace();
  line.dropped_by_expert.emplace();
  line.dropped_by_source.emplace();
  line.fully_dropped_tokens.emplace();
  line.padding_slots.emplace();
  line.expert_tokens.emplace();
  double gate_mass = 0.0, dropped_mass = 0.0;
  int64_t num_tokens = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const ep::Ledger& ledger = reports[rank].layers[index].ledger;
    line.fully_dropped_tokens->push_back(ledger.fully_dropped_tokens);
    gate_mass += ledger.gate_mass;
    dropped_mass += ledger.dropped_gate_mass;
    line.recv_buffer_bytes = std::max(line.recv_buffer_bytes, ledger.recv_buffer_bytes);
    num_tokens = std::max(num_tokens, ledger.group_tokens);
    // The group waits for the slowest of its allocations.
    const size_t group = rank / static_cast<size_t>(c.ep);
    line.grow_alloc_ms.resize(group + 1, 0.0);
    line.grow_alloc_ms[group] = std::max(line.grow_alloc_ms[group], ledger.grow_alloc_ms);
    if (rank % static_cast<size_t>(c.ep) != 0) continue;
    line.capacity_end.push_back(ledger.capacity_end);
    append(line.total_recv_tokens, ledger.total_recv_tokens);
    append(*line.recv_assignments, ledger.recv_assignments);
    append(*line.slot_counts_sum, ledger.slot_counts_sum);
    append(*line.dropped_assignments, ledger.dropped_assignments);
    append(*line.dropped_by_source, ledger.dropped_by_source);
    append(*line.padding_slots, ledger.padding_slots);
    line.dropped_by_expert->push_back(ledger.dropped_by_expert);
    line.expert_tokens->push_back(ledger.expert_tokens);
  }
  line.gate_mass = gate_mass;
  line.dropped_gate_mass = dropped_mass;
  const int64_t per_rank = c.num_experts / c.ep;
  line.balanced_slots =
      plan::balanced_slots(num_tokens, c.top_k, c.num_experts, per_rank, c.alignment);
  line.worst_case_slots = plan::worst_case_slots(num_tokens, c.top_k, per_rank, c.alignment);
  const int64_t highest =
      *std::max_element(line.total_recv_tokens.begin(), line.total_recv_tokens.end());
  if (line.balanced_slots > 0) {
    line.max_over_balanced =
        static_cast<double>(highest) / static_cast<double>(line.balanced_slots);
  }
  if (line.capacity > 0) {
    line.headroom = 1.0 - static_cast<double>(highest) / static_cast<double>(line.capacity);
  }
  line.capacity_sized_bytes = c.capacity_sized_row_bytes *
                              *std::max_element(line.capacity_end.begin(), line.capacity_end.end());
  return line;
}

metrics::CounterValues values(const CounterSet& set, int64_t bytes_of_world) {
  return {.prepares = set.prepares,
          .fused_prepares = set.fused_prepares,
          .forward_dispatches = set.forward_dispatches,
          .combines = set.combines,
          .backward_transports = set.backward_transports,
          .host_syncs = set.host_syncs,
          .all_to_all_bytes = bytes_of_world};
}

}  // namespace

std::vector<EpRecord> ep_records(const std::vector<RankReport>& reports, int64_t step,
                                 const EpMetricsContext& context) {
  std::vector<EpRecord> lines;
  for (size_t i = 0; i < reports.front().layers.size(); ++i) {
    lines.push_back(ep_record(reports, i, step, context));
  }
  return lines;
}

std::vector<EpStepRecord> ep_step_records(const std::vector<RankReport>& reports, int64_t step,
                                          const EpMetricsContext& context) {
  std::vector<EpStepRecord> lines(context.layer_ids.size());
  for (size_t layer = 0; layer < lines.size(); ++layer) {
    EpStepRecord& line = lines[layer];
    line.step = step;
    line.layer = context.layer_ids[layer];
    line.capacity = line.capacity_end = context.capacity[layer];
    line.dropped_assignments = line.fully_dropped_tokens = 0;
    line.dropped_gate_mass = 0.0;
  }
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const bool group_root = rank % static_cast<size_t>(context.ep) == 0;
    for (const moe::LayerRecord& record : reports[rank].layers) {
      EpStepRecord& line = lines[static_cast<size_t>(record.moe_layer)];
      const ep::Ledger& ledger = record.ledger;
      *line.fully_dropped_tokens += ledger.fully_dropped_tokens;
      *line.dropped_gate_mass += ledger.dropped_gate_mass;
      line.capacity_end = std::max(line.capacity_end, ledger.capacity_end);
      if (!group_root) continue;
      for (const int64_t slots : ledger.total_recv_tokens) {
        line.max_total_recv_tokens = std::max(line.max_total_recv_tokens, slots);
      }
      for (const int64_t drops : ledger.dropped_assignments) *line.dropped_assignments += drops;
      if (ledger.capacity_end > ledger.capacity_begin) ++line.grow_events;
    }
  }
  return lines;
}

std::vector<metrics::ReconfigureRecord> grow_records(const std::vector<EpRecord>& lines) {
  std::vector<metrics::ReconfigureRecord> records;
  // What a group held before: the capacity when the step began, or what it grew to since.
  std::map<std::pair<int64_t, size_t>, int64_t> held;
  for (const EpRecord& line : lines) {
    for (size_t group = 0; group < line.capacity_end.size(); ++group) {
      const auto [it, fresh] = held.try_emplace({line.layer, group}, line.capacity);
      const int64_t now = line.capacity_end[group];
      if (now <= it->second) continue;
      records.push_back({.step = line.step,
                         .epoch = line.epoch,
                         .layer = line.layer,
                         .kind = metrics::ReconfigureKind::kGrow,
                         .group = static_cast<int64_t>(group),
                         .micro_batch = line.micro_batch,
                         .old_capacity = it->second,
                         .new_capacity = now,
                         .reason = "demand above capacity",
                         .mode = "buffers",
                         .alloc_ms = line.grow_alloc_ms[group]});
      it->second = now;
    }
  }
  return records;
}

metrics::CountersRecord counters_record(const std::vector<RankReport>& reports,
                                        const StepAgreement& agreement, int64_t step) {
  return {
      .step = step,
      .total = values(reports.front().counters, agreement.all_to_all_bytes),
      .backward = values(reports.front().backward_counters, agreement.backward_all_to_all_bytes),
      .avoided = values(reports.front().avoided_counters, agreement.avoided_all_to_all_bytes)};
}

}  // namespace spillway::train
