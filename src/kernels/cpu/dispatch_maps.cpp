#include "dispatch_maps.h"

#include <algorithm>
#include <numeric>

#include "no_index.h"
#include "scratch.h"
#include "spillway/core/rng.h"
#include "spillway/kernels/score_bins.h"

namespace spillway::kernels::cpu {
namespace {

// Where the next kept assignment to an expert goes: one number counts its row and its map entry.
struct Cursor {
  intptr_t entries;  // address of the entry of row 0, though that may be another expert's or none
  int32_t row;
};

inline int32_t* entry_at(const Cursor& cursor, int32_t row) {
  return reinterpret_cast<int32_t*>(cursor.entries +
                                    static_cast<intptr_t>(row) * intptr_t{sizeof(int32_t)});
}

Cursor first_cursor(const DispatchMapsArgs& args, const ExpertRows& rows) {
  Tensor& map = rows.local ? args.local_assignment : args.send_assignment;
  const auto begin = reinterpret_cast<intptr_t>(map.data<int32_t>());
  return {begin + (rows.first_entry - rows.first_row) * intptr_t{sizeof(int32_t)},
          static_cast<int32_t>(rows.first_row)};
}

constexpr int64_t kAhead = 4;  // entries; measured: 2 and 4 are best, 16 costs half as much again

inline int32_t take(Cursor& cursor, int32_t assignment) {
  const int32_t row = cursor.row;
  cursor.row = row + 1;
  int32_t* const entry = entry_at(cursor, row);
  *entry = assignment;
  // As many streams as experts, more than the hardware follows: half the time. Not further ahead:
  // experts of equal load lie at equal distances, so that their lines fight for few cache sets.
  __builtin_prefetch(entry + kAhead, 1);
  return row;
}

// Nothing is dropped: one load, two stores an assignment and no branch but that of -1.
void place_all(const DispatchMapsArgs& args, Cursor* cursors) {
  const int32_t* ids = args.topk_idx.data<int32_t>();
  int32_t* row_of = args.row_of.data<int32_t>();
  const auto numel = static_cast<int32_t>(args.topk_idx.numel());
  for (int32_t i = 0; i < numel; ++i) {
    __builtin_prefetch(row_of + i + 128, 1);  // past the end it does nothing
    row_of[i] = ids[i] < 0 ? kNoRow : take(cursors[ids[i]], i);
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
  int32_t* row_of = args.row_of.data<int32_t>();
  const auto numel = static_cast<int32_t>(args.topk_idx.numel());
  int32_t aside = 0;
  for (int32_t i = 0; i < numel; ++i) {
    if (ids[i] < 0) {
      row_of[i] = kNoRow;
      continue;
    }
    Remaining& left = remaining[ids[i]];
    const int32_t row = left.cursor.row;
    int32_t* const entry = entry_at(left.cursor, row);
    // All bits set where it is kept. Masks, as the compiler makes branches of conditions.
    const int64_t kept = -left.kept >> 63;
    const auto kept_row = static_cast<int32_t>(kept);
    row_of[i] = row | ~kept_row;
    const auto place =
        (reinterpret_cast<intptr_t>(entry) & kept) | (reinterpret_cast<intptr_t>(&aside) & ~kept);
    *reinterpret_cast<int32_t*>(place) = i;
    left.cursor.row = row - kept_row;
    left.kept += kept;
    __builtin_prefetch(entry + kAhead, 1);  // see take
  }
}

// `key_of(expert, ordinal, i)` is asked only where an expert keeps by key.
template <typename KeyOf>
void place_kept(const DispatchMapsArgs& args, Remaining* remaining, const KeyOf& key_of) {
  const int32_t* ids = args.topk_idx.data<int32_t>();
  int32_t* row_of = args.row_of.data<int32_t>();
  const auto numel = static_cast<int32_t>(args.topk_idx.numel());
  for (int32_t i = 0; i < numel; ++i) {
    row_of[i] = kNoRow;
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
  int32_t* slot = args.local_slot.data<int32_t>();
  const int64_t num_sent = args.send_assignment.dim(0);
  for (const ExpertRows& rows : args.experts) {
    if (!rows.local) continue;
    int32_t* first = slot + rows.first_entry;
    std::iota(first, first + rows.kept, static_cast<int32_t>(rows.first_row - num_sent));
  }
}

// Sums of this many interleaved parts, added at the end: a fixed order that vectorises.
constexpr int64_t kLanes = 16;

struct LaneSums {
  double lanes[kLanes] = {};

  double total() const {
    double sum = 0.0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }
};

// Adds values [begin, end) where counted; `begin` is a multiple of kLanes.
template <typename T, typename Counted>
void add_where(const T* values, int64_t begin, int64_t end, const Counted& counted,
               LaneSums& sums) {
  LaneSums local = sums;  // in registers
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      local.lanes[lane] += counted(i + lane) ? value : 0.0;
    }
  }
  for (int64_t lane = 0; i + lane < end; ++lane) {
    local.lanes[lane] += counted(i + lane) ? static_cast<double>(values[i + lane]) : 0.0;
  }
  sums = local;
}

// Of numbers that are negative (none) or not, all are none when their `and` is negative.
template <int64_t kCount>
bool all_none(const int32_t* values, int64_t count) {
  int32_t all = kNoRow;
  for (int64_t i = 0; i < (kCount > 0 ? kCount : count); ++i) all &= values[i];
  return all < 0;
}

// kTopK: top_k where the compiler knows it, else 0.
template <int64_t kTopK>
int64_t count_fully_dropped(const int32_t* ids, const int32_t* row_of, int64_t num_tokens,
                            int64_t top_k) {
  int64_t fully_dropped = 0;
  for (int64_t i = 0; i < num_tokens * top_k; i += top_k) {
    if (all_none<kTopK>(row_of + i, top_k) && !all_none<kTopK>(ids + i, top_k)) ++fully_dropped;
  }
  return fully_dropped;
}

// Blocks of so many tokens, a multiple of kLanes, are read from the first-level cache three times.
constexpr int64_t kBlockTokens = 64;

template <typename T, int64_t kTopK>
void add_up(const DroppedSumsArgs& args) {
  const T* gate = args.gate.data<T>();
  const int32_t* ids = args.topk_idx.data<int32_t>();
  const int32_t* row_of = args.row_of.data<int32_t>();
  const int64_t num_tokens = args.topk_idx.dim(0), top_k = args.topk_idx.dim(1);
  const auto assigned = [ids](int64_t i) { return ids[i] >= 0; };
  const auto lost = [ids, row_of](int64_t i) { return (ids[i] >= 0) & (row_of[i] < 0); };
  LaneSums all, dropped;
  int64_t fully_dropped = 0;
  for (int64_t t = 0; t < num_tokens; t += kBlockTokens) {
    const int64_t tokens = std::min(kBlockTokens, num_tokens - t);
    const int64_t begin = t * top_k, end = begin + tokens * top_k;
    add_where(gate, begin, end, assigned, all);
    if (!args.any_dropped) continue;
    add_where(gate, begin, end, lost, dropped);
    fully_dropped += count_fully_dropped<kTopK>(ids + begin, row_of + begin, tokens, top_k);
  }
  double* sums = args.sums.data<double>();
  sums[0] = all.total();
  sums[1] = dropped.total();
  sums[2] = static_cast<double>(fully_dropped);
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
  const bool eight = args.topk_idx.dim(1) == 8;  // a common one, in one vector
  if (args.gate.dtype() == DType::kF64) {
    eight ? add_up<double, 8>(args) : add_up<double, 0>(args);
  } else {
    eight ? add_up<float, 8>(args) : add_up<float, 0>(args);
  }
}

}  // namespace spillway::kernels::cpu
