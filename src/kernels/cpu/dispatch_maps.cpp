#include "dispatch_maps.h"

#include <algorithm>

#include "scratch.h"
#include "spillway/core/rng.h"
#include "spillway/kernels/score_bins.h"

namespace spillway::kernels::cpu {
namespace {

constexpr int64_t kNone = -1;

// Where the next kept assignment to an expert goes.
struct Cursor {
  int64_t* assignment;
  int64_t row;
};

Cursor first_cursor(const DispatchMapsArgs& args, const ExpertRows& rows) {
  Tensor& map = rows.local ? args.local_assignment : args.send_assignment;
  return {map.data<int64_t>() + rows.first_entry, rows.first_row};
}

inline int64_t take(Cursor& cursor, int64_t assignment) {
  int64_t* const entry = cursor.assignment;
  const int64_t row = cursor.row;
  cursor = {entry + 1, row + 1};
  *entry = assignment;
  // As many streams as experts, more than the hardware follows. Measured: half the time.
  __builtin_prefetch(entry + 8, 1);
  return row;
}

// Nothing is dropped: one load, two stores an assignment and no branch but that of -1.
void place_all(const DispatchMapsArgs& args, Cursor* cursors) {
  const int32_t* ids = args.topk_idx.data<int32_t>();
  int64_t* row_of = args.row_of.data<int64_t>();
  const int64_t numel = args.topk_idx.numel();
  for (int64_t i = 0; i < numel; ++i) {
    __builtin_prefetch(row_of + i + 64, 1);  // a fifth of the time; past the end it does nothing
    row_of[i] = ids[i] < 0 ? kNone : take(cursors[ids[i]], i);
  }
}

// What is still to come of one expert.
struct Remaining {
  Cursor cursor;
  int64_t kept;
  int64_t at_cut;
  int64_t ordinal = 0;
};

// The first ones of each expert are kept: no branch but that of -1, since what is dropped is hard
// to foresee. What is dropped is written beside the maps.
void place_first(const DispatchMapsArgs& args, Remaining* remaining) {
  const int32_t* ids = args.topk_idx.data<int32_t>();
  int64_t* row_of = args.row_of.data<int64_t>();
  const int64_t numel = args.topk_idx.numel();
  int64_t aside = 0;
  for (int64_t i = 0; i < numel; ++i) {
    if (ids[i] < 0) {
      row_of[i] = kNone;
      continue;
    }
    Remaining& left = remaining[ids[i]];
    int64_t* const entry = left.cursor.assignment;
    const int64_t row = left.cursor.row;
    // All bits set where it is kept. Masks, as the compiler makes branches of conditions.
    const int64_t kept = -left.kept >> 63;
    row_of[i] = (row & kept) | ~kept;
    const auto place =
        (reinterpret_cast<intptr_t>(entry) & kept) | (reinterpret_cast<intptr_t>(&aside) & ~kept);
    *reinterpret_cast<int64_t*>(place) = i;
    left.cursor = {entry - kept, row - kept};
    left.kept += kept;
    __builtin_prefetch(entry + 8, 1);  // see take
  }
}

// `key_of(expert, ordinal, i)` is asked only where an expert keeps by key.
template <typename KeyOf>
void place_kept(const DispatchMapsArgs& args, Remaining* remaining, const KeyOf& key_of) {
  const int32_t* ids = args.topk_idx.data<int32_t>();
  int64_t* row_of = args.row_of.data<int64_t>();
  const int64_t numel = args.topk_idx.numel();
  for (int64_t i = 0; i < numel; ++i) {
    row_of[i] = kNone;
    if (ids[i] < 0) continue;
    const ExpertRows& rows = args.experts[static_cast<size_t>(ids[i])];
    Remaining& left = remaining[ids[i]];
    const int64_t ordinal = left.ordinal++;
    if (left.kept == 0) continue;  // never sent
    if (rows.by_key) {
      const uint64_t key = key_of(rows, ordinal, i);
      if (key > rows.cut) continue;
      if (key == rows.cut && left.at_cut-- <= 0) continue;
    }
    --left.kept;
    row_of[i] = take(left.cursor, i);
  }
}

void place(const DispatchMapsArgs& args, Remaining* remaining) {
  if (args.key == KeepKey::kHash) {
    place_kept(args, remaining, [](const ExpertRows& rows, int64_t ordinal, int64_t) {
      return hash_chain(rows.hash_state, static_cast<uint64_t>(ordinal));
    });
  } else if (args.key == KeepKey::kScore && args.gate.dtype() == DType::kF64) {
    const double* gate = args.gate.data<double>();
    place_kept(args, remaining, [gate](const ExpertRows&, int64_t, int64_t i) {
      return static_cast<uint64_t>(score_key(gate[i]));
    });
  } else if (args.key == KeepKey::kScore) {
    const float* gate = args.gate.data<float>();
    place_kept(args, remaining, [gate](const ExpertRows&, int64_t, int64_t i) {
      return static_cast<uint64_t>(score_key(gate[i]));
    });
  } else {
    place_first(args, remaining);
  }
}

// The rows that stay are in slot order: of each expert consecutive slots. A row_of of this rank
// counts from the R rows sent.
void fill_local_slots(const DispatchMapsArgs& args) {
  int64_t* slot = args.local_slot.data<int64_t>();
  const int64_t num_sent = args.send_assignment.dim(0);
  for (const ExpertRows& rows : args.experts) {
    if (!rows.local) continue;
    for (int64_t i = 0; i < rows.kept; ++i) {
      slot[rows.first_entry + i] = rows.first_row - num_sent + i;
    }
  }
}

// Sums of this many interleaved parts, added at the end: a fixed order that vectorises.
constexpr int64_t kLanes = 16;

template <typename T, typename Counted>
double sum_where(const T* values, int64_t numel, const Counted& counted) {
  double lanes[kLanes] = {};
  const int64_t whole = numel - numel % kLanes;
  for (int64_t begin = 0; begin < whole; begin += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[begin + lane]);
      lanes[lane] += counted(begin + lane) ? value : 0.0;
    }
  }
  for (int64_t i = whole; i < numel; ++i) {
    lanes[i - whole] += counted(i) ? static_cast<double>(values[i]) : 0.0;
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Of numbers that are negative (none) or not, all are none when their `and` is negative.
template <typename T>
bool all_none(const T* values, int64_t count) {
  T all = kNone;
  for (int64_t i = 0; i < count; ++i) all &= values[i];
  return all < 0;
}

int64_t count_fully_dropped(const int32_t* ids, const int64_t* row_of, int64_t num_tokens,
                            int64_t top_k) {
  int64_t fully_dropped = 0;
  for (int64_t i = 0; i < num_tokens * top_k; i += top_k) {
    if (all_none(row_of + i, top_k) && !all_none(ids + i, top_k)) ++fully_dropped;
  }
  return fully_dropped;
}

template <typename T>
void add_up(const DroppedSumsArgs& args) {
  const T* gate = args.gate.data<T>();
  const int32_t* ids = args.topk_idx.data<int32_t>();
  const int64_t* row_of = args.row_of.data<int64_t>();
  const int64_t numel = args.gate.numel();
  double* sums = args.sums.data<double>();
  sums[0] = sum_where(gate, numel, [ids](int64_t i) { return ids[i] >= 0; });
  if (!args.any_dropped) return;
  sums[1] = sum_where(gate, numel,
                      [ids, row_of](int64_t i) { return (ids[i] >= 0) & (row_of[i] == kNone); });
  sums[2] = static_cast<double>(
      count_fully_dropped(ids, row_of, args.topk_idx.dim(0), args.topk_idx.dim(1)));
}

}  // namespace

void dispatch_maps(Context& ctx, const DispatchMapsArgs& args) {
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const bool all_kept =
      std::all_of(args.experts.begin(), args.experts.end(),
                  [](const ExpertRows& rows) { return rows.kept == rows.routed; });
  if (all_kept) {
    const ScratchArray<Cursor> cursors(ctx, num_experts);
    std::transform(args.experts.begin(), args.experts.end(), cursors.data(),
                   [&](const ExpertRows& rows) { return first_cursor(args, rows); });
    place_all(args, cursors.data());
  } else {
    const ScratchArray<Remaining> remaining(ctx, num_experts);
    std::transform(args.experts.begin(), args.experts.end(), remaining.data(),
                   [&](const ExpertRows& rows) {
                     return Remaining{first_cursor(args, rows), rows.kept, rows.at_cut};
                   });
    place(args, remaining.data());
  }
  fill_local_slots(args);
}

void dropped_sums(Context&, const DroppedSumsArgs& args) {
  args.sums.zero();
  if (args.gate.numel() == 0) return;
  if (args.gate.dtype() == DType::kF64) {
    add_up<double>(args);
  } else {
    add_up<float>(args);
  }
}

}  // namespace spillway::kernels::cpu
