#include "transport.h"

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "spillway/kernels/rows.h"

namespace spillway::ep {
namespace {

enum class Direction { kToExperts, kToTokens };

// Rows or their scalars, in both places.
struct Payload {
  std::byte* staged;  // [R, ...]
  std::byte* slots;   // [C, ...]
  int64_t row_bytes;
};

// By value: tensors share memory, and either side may be the one that is only read.
Payload payload(Tensor staged, Tensor slots) {
  return {static_cast<std::byte*>(staged.raw_data()), static_cast<std::byte*>(slots.raw_data()),
          slots.bytes() / slots.dim(0)};
}

size_t cell(int64_t rank, int64_t local_expert, int64_t experts_per_rank) {
  return static_cast<size_t>(rank * experts_per_rank + local_expert);
}

// Staged rows of a peer, [begin, end).
std::pair<int64_t, int64_t> staged_range(const Route& route, int peer) {
  const RoutingHandle& handle = route.handle;
  const auto experts_per_rank = static_cast<int64_t>(handle.token_counts.size());
  int64_t begin = 0, end = 0;
  for (int64_t rank = 0; rank <= peer; ++rank) {
    begin = end;
    if (rank == route.group.rank()) continue;
    const auto first = handle.send_counts.begin() + rank * experts_per_rank;
    end = std::accumulate(first, first + experts_per_rank, end);
  }
  return {begin, end};
}

// Segments of the tokens' side: my rows, by (rank, its local expert), one after the other.
std::vector<comm::Segment> staged_segments(const Route& route, const std::vector<Payload>& loads) {
  const auto experts_per_rank = static_cast<int64_t>(route.handle.token_counts.size());
  std::vector<comm::Segment> segments;
  int64_t peer_begin = 0;
  for (int peer = 0; peer < route.group.size(); ++peer) {
    if (peer == route.group.rank()) continue;
    int64_t row = peer_begin;
    for (const Payload& load : loads) {
      row = peer_begin;
      for (int64_t local = 0; local < experts_per_rank; ++local) {
        const int64_t count = route.handle.send_counts[cell(peer, local, experts_per_rank)];
        if (count > 0) {
          segments.push_back({peer, load.staged + row * load.row_bytes, count * load.row_bytes});
        }
        row += count;
      }
    }
    peer_begin = row;
  }
  return segments;
}

// Segments of the experts' side: inside each zone the sources' rows follow each other. The order
// (load, local expert) towards one peer is that of staged_segments, so the i-th meets the i-th.
std::vector<comm::Segment> slot_segments(const Route& route, const std::vector<Payload>& loads) {
  const RoutingHandle& handle = route.handle;
  const auto experts_per_rank = static_cast<int64_t>(handle.token_counts.size());
  std::vector<comm::Segment> segments;
  std::vector<int64_t> begin = handle.zone_begin;  // of the peer at hand, in each zone
  for (int peer = 0; peer < route.group.size(); ++peer) {
    for (const Payload& load : loads) {
      if (peer == route.group.rank()) break;
      for (int64_t local = 0; local < experts_per_rank; ++local) {
        const int64_t count = handle.recv_counts[cell(peer, local, experts_per_rank)];
        const int64_t slot = begin[static_cast<size_t>(local)];
        if (count > 0) {
          segments.push_back({peer, load.slots + slot * load.row_bytes, count * load.row_bytes});
        }
      }
    }
    for (int64_t local = 0; local < experts_per_rank; ++local) {
      begin[static_cast<size_t>(local)] += handle.recv_counts[cell(peer, local, experts_per_rank)];
    }
  }
  return segments;
}

// The one transport. Counts the bytes that this rank sends to others.
void move(const Route& route, Direction direction, const std::vector<Payload>& loads,
          const comm::Overlap& overlap) {
  if (route.group.size() == 1) {
    overlap.meanwhile();
    return;
  }
  const std::vector<comm::Segment> staged = staged_segments(route, loads);
  const std::vector<comm::Segment> slots = slot_segments(route, loads);
  const bool to_experts = direction == Direction::kToExperts;
  const std::vector<comm::Segment>& sends = to_experts ? staged : slots;
  int64_t bytes = 0;
  for (const comm::Segment& segment : sends) bytes += segment.bytes;
  route.group.exchange_overlapped(sends, to_experts ? slots : staged, overlap);
  route.ctx.counters().add(&CounterSet::all_to_all_bytes, bytes);
}

// Token of each assignment: t of the flat index t*K + k.
Tensor tokens_of(const Route& route, const Tensor& assignments) {
  Tensor tokens = Tensor::empty(route.ctx, assignments.shape(), kIndexType, Purpose::kWorkspace);
  const auto top_k = static_cast<int32_t>(route.handle.header.top_k);
  const int32_t* from = assignments.data<int32_t>();
  int32_t* to = tokens.data<int32_t>();
  for (int64_t i = 0; i < assignments.numel(); ++i) to[i] = from[i] / top_k;
  return tokens;
}

// Rows (and gates) that stay on this rank, straight into their slots: one run of slots an expert.
void place_own(const Route& route, const Tensor& rows, Tensor& row_slots, const Tensor& gates,
               Tensor& gate_slots) {
  const RoutingHandle& handle = route.handle;
  const auto experts_per_rank = static_cast<int64_t>(handle.token_counts.size());
  const Tensor tokens = tokens_of(route, handle.local_assignment);
  const int32_t* slot_of = handle.local_slot.data<int32_t>();
  int64_t begin = 0;
  for (int64_t local = 0; local < experts_per_rank; ++local) {
    const int64_t count = handle.recv_counts[cell(route.group.rank(), local, experts_per_rank)];
    if (count == 0) continue;
    const int64_t slot = slot_of[begin];
    Tensor target = row_slots.rows(slot, slot + count);
    kernels::gather_rows(route.ctx, rows, tokens.rows(begin, begin + count), target);
    if (gates.defined()) {
      Tensor gate_target = gate_slots.rows(slot, slot + count);
      kernels::gather_scalars(route.ctx, gates, handle.local_assignment.rows(begin, begin + count),
                              gate_target);
    }
    begin += count;
  }
}

void zero_padding(const RoutingHandle& handle, Tensor& slots) {
  for (size_t local = 0; local < handle.zone_begin.size(); ++local) {
    const int64_t begin = handle.zone_begin[local];
    kernels::zero_rows(slots, begin + handle.token_counts[local],
                       begin + handle.slot_counts[local]);
  }
}

// Debug mode: what no row and no padding overwrites is a NaN afterwards, and a row that was missed
// shows too. All bits set is a NaN in f32, f64 and bf16 alike.
void poison(Tensor& slots) {
  std::memset(slots.raw_data(), 0xff, static_cast<size_t>(slots.bytes()));
}

}  // namespace

void to_experts(const Route& route, const Tensor& rows, Tensor& row_slots, const Tensor& gates,
                Tensor& gate_slots) {
  const Tensor& sent = route.handle.send_assignment;
  const int64_t num_sent = sent.dim(0);
  const bool with_gates = gates.defined();
  const Tensor tokens = tokens_of(route, sent);
  Tensor staged_rows =
      Tensor::empty(route.ctx, {num_sent, rows.dim(1)}, rows.dtype(), Purpose::kWorkspace);
  std::vector<Payload> loads{payload(staged_rows, row_slots)};
  Tensor staged_gates;
  if (with_gates) {
    staged_gates = Tensor::empty(route.ctx, {num_sent}, gates.dtype(), Purpose::kWorkspace);
    loads.push_back(payload(staged_gates, gate_slots));
  }
  if (route.poison) poison(row_slots);
  if (route.poison && with_gates) poison(gate_slots);
  // Rows for one peer are gathered while those for the peers before it travel, and own rows while
  // all others do.
  const auto stage = [&](int peer) {
    const auto [begin, end] = staged_range(route, peer);
    Tensor row_target = staged_rows.rows(begin, end);
    kernels::gather_rows(route.ctx, rows, tokens.rows(begin, end), row_target);
    if (!with_gates) return;
    Tensor gate_target = staged_gates.rows(begin, end);
    kernels::gather_scalars(route.ctx, gates, sent.rows(begin, end), gate_target);
  };
  const auto own = [&] {
    place_own(route, rows, row_slots, gates, gate_slots);
    zero_padding(route.handle, row_slots);
    if (with_gates) zero_padding(route.handle, gate_slots);
  };
  move(route, Direction::kToExperts, loads, {stage, own});
}

void to_tokens(const Route& route, const Tensor& row_slots, Tensor& staged_rows,
               const Tensor& gate_slots, Tensor& staged_gates) {
  std::vector<Payload> loads{payload(staged_rows, row_slots)};
  if (gate_slots.defined()) loads.push_back(payload(staged_gates, gate_slots));
  move(route, Direction::kToTokens, loads, {[](int) {}, [] {}});
}

}  // namespace spillway::ep
