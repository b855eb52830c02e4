#include "spillway/train/step_report.h"

#include <algorithm>
#include <cmath>

#include "wire.h"

namespace spillway::train {
namespace {

template <typename Fields, typename Ledger>
void ledger_fields(Fields&& field, Ledger& l) {
  field(l.total_recv_tokens);
  field(l.recv_assignments);
  field(l.slot_counts_sum);
  field(l.padding_slots);
  field(l.dropped_assignments);
  field(l.dropped_by_source);
  field(l.dropped_by_expert);
  field(l.expert_tokens);
  field(l.group_tokens);
  field(l.fully_dropped_tokens);
  field(l.gate_mass);
  field(l.dropped_gate_mass);
  field(l.capacity_begin);
  field(l.capacity_end);
  field(l.grow_alloc_ms);
  field(l.recv_buffer_bytes);
}

template <typename Fields, typename Report>
void report_fields(Fields&& field, Report& r) {
  field(r.norm_squares);
  field(r.finite);
  field(r.skip);
  field(r.stop);
  field(r.checkpoint);
  field(r.loss_sum);
  field(r.aux_loss);
  field(r.z_loss);
  field(r.mem_peak_bytes);
  field(r.peak_by_purpose);
  field(r.saved_peaks);
  field(r.dropped_assignments);
  field(r.counters);
  field(r.backward_counters);
  field(r.avoided_counters);
}

template <typename Fields, typename Agreement>
void agreement_fields(Fields&& field, Agreement& a) {
  field(a.grad_norm);
  field(a.finite);
  field(a.skip);
  field(a.stop);
  field(a.checkpoint);
  field(a.loss_sum);
  field(a.aux_loss);
  field(a.z_loss);
  field(a.mem_peak_bytes);
  field(a.peak_by_purpose);
  field(a.saved_peaks);
  field(a.all_to_all_bytes);
  field(a.backward_all_to_all_bytes);
  field(a.avoided_all_to_all_bytes);
  field(a.counters_differ_on);
  field(a.dropped_assignments);
  field(a.demand);
  field(a.capacity_end);
  field(a.expert_counts);
}

std::vector<std::byte> pack(const RankReport& report) {
  WireWriter writer;
  report_fields(PutFields{writer}, report);
  writer.put(report.layers.size());
  for (const moe::LayerRecord& layer : report.layers) {
    writer.put(layer.moe_layer);
    writer.put(layer.micro_batch);
    ledger_fields(PutFields{writer}, layer.ledger);
  }
  return std::move(writer.bytes());
}

RankReport unpack(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  RankReport report;
  report_fields(GetFields{reader}, report);
  size_t layers = 0;
  reader.get(layers);
  report.layers.resize(layers);
  for (moe::LayerRecord& layer : report.layers) {
    reader.get(layer.moe_layer);
    reader.get(layer.micro_batch);
    ledger_fields(GetFields{reader}, layer.ledger);
  }
  return report;
}

/// Equal on every rank but for the bytes, and for host syncs (see the EP contract).
bool same_counters(CounterSet a, CounterSet b) {
  a.all_to_all_bytes = b.all_to_all_bytes = 0;
  a.host_syncs = b.host_syncs = 0;
  return a == b;
}

bool same_counters(const RankReport& a, const RankReport& b) {
  return same_counters(a.counters, b.counters) &&
         same_counters(a.backward_counters, b.backward_counters) &&
         same_counters(a.avoided_counters, b.avoided_counters);
}

/// The ranks of an EP group know the same counts: only its first one adds them.
void add_expert_counts(const ep::Ledger& ledger, size_t rank, std::vector<int64_t>& counts) {
  const size_t ep = ledger.total_recv_tokens.size();
  if (ep == 0 || rank % ep != 0) return;
  counts.resize(ledger.expert_tokens.size(), 0);
  for (size_t e = 0; e < counts.size(); ++e) counts[e] += ledger.expert_tokens[e];
}

StepAgreement reduce(const std::vector<RankReport>& reports, int64_t num_moe_layers) {
  StepAgreement all;
  all.demand.assign(static_cast<size_t>(num_moe_layers), 0);
  all.capacity_end.assign(static_cast<size_t>(num_moe_layers), 0);
  all.expert_counts.resize(static_cast<size_t>(num_moe_layers));
  double norm_squares = 0.0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const RankReport& r = reports[rank];
    norm_squares += r.norm_squares;
    all.finite = std::min(all.finite, r.finite);
    all.skip = std::max(all.skip, r.skip);
    all.stop = std::max(all.stop, r.stop);
    all.checkpoint = std::max(all.checkpoint, r.checkpoint);
    all.loss_sum += r.loss_sum;
    all.aux_loss += r.aux_loss;
    all.z_loss += r.z_loss;
    all.mem_peak_bytes = std::max(all.mem_peak_bytes, r.mem_peak_bytes);
    for (size_t purpose = 0; purpose < all.peak_by_purpose.size(); ++purpose) {
      all.peak_by_purpose[purpose] =
          std::max(all.peak_by_purpose[purpose], r.peak_by_purpose[purpose]);
    }
    for (size_t name = 0; name < all.saved_peaks.size(); ++name) {
      all.saved_peaks[name] = std::max(all.saved_peaks[name], r.saved_peaks[name]);
    }
    all.dropped_assignments += r.dropped_assignments;
    all.all_to_all_bytes += r.counters.all_to_all_bytes;
    all.backward_all_to_all_bytes += r.backward_counters.all_to_all_bytes;
    all.avoided_all_to_all_bytes += r.avoided_counters.all_to_all_bytes;
    if (all.counters_differ_on < 0 && !same_counters(r, reports[0])) {
      all.counters_differ_on = static_cast<int64_t>(rank);
    }
    for (const moe::LayerRecord& layer : r.layers) {
      const auto index = static_cast<size_t>(layer.moe_layer);
      for (const int64_t slots : layer.ledger.total_recv_tokens) {
        all.demand[index] = std::max(all.demand[index], slots);
      }
      all.capacity_end[index] = std::max(all.capacity_end[index], layer.ledger.capacity_end);
      add_expert_counts(layer.ledger, rank, all.expert_counts[index]);
    }
  }
  all.grad_norm = std::sqrt(norm_squares);
  if (!std::isfinite(all.grad_norm) || !std::isfinite(all.loss_sum)) all.finite = 0;
  return all;
}

}  // namespace

PeakBytes peak_bytes(const Allocator& allocator) {
  PeakBytes peaks{};
  for (size_t purpose = 0; purpose < peaks.size(); ++purpose) {
    peaks[purpose] = allocator.use(static_cast<Purpose>(purpose)).peak_bytes;
  }
  return peaks;
}

SavedPeaks saved_peaks(const autograd::SavedBytes& saved) {
  SavedPeaks peaks{};
  for (size_t i = 0; i < peaks.size(); ++i) {
    const auto use = saved.find(ops::kHeldNames[i]);
    if (use != saved.end()) peaks[i] = use->second.peak_bytes;
  }
  return peaks;
}

StepMessage exchange_reports(comm::Communicator& world, const RankReport& mine,
                             int64_t num_moe_layers) {
  StepMessage message;
  const std::vector<std::byte> blob = pack(mine);
  const auto blobs = world.gather_to_root(blob);
  WireWriter writer;
  if (world.rank() == 0) {
    for (const auto& bytes : blobs) message.reports.push_back(unpack(bytes));
    message.agreement = reduce(message.reports, num_moe_layers);
    agreement_fields(PutFields{writer}, message.agreement);
  }
  std::vector<std::byte> answer = std::move(writer.bytes());
  world.broadcast_from_root(answer);
  WireReader reader(answer);
  agreement_fields(GetFields{reader}, message.agreement);
  return message;
}

}  // namespace spillway::train
