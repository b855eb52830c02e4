#pragma once
// One function an order: what a rank that overflows keeps (kScore: score_order.h). S = source
// ranks, L = experts per rank.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/plan/rank_plan.h"

namespace spillway::plan {

/// The columns of the count matrix that belong to one rank, checked and summed once.
struct Inbox {
  Inbox(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment);

  const int64_t* row(int64_t source) const { return counts + source * stride; }
  int64_t at(int64_t source, int64_t local) const { return row(source)[local]; }
  int64_t num_cells() const { return num_sources * num_experts; }
  bool overflow() const { return demand > capacity; }

  int64_t rank, capacity, alignment;
  int64_t num_sources = 0;          // S
  int64_t num_experts = 0;          // L
  const int64_t* counts = nullptr;  // of source 0; lives as long as the matrix
  int64_t stride = 0;               // from source to source
  std::vector<int64_t> routed;      // [L]
  int64_t num_rows = 0;             // sum of routed
  int64_t demand = 0;               // slots
};

KeptRows keep_everything(const Inbox& inbox);
KeptRows keep_tail(const Inbox& inbox);
KeptRows keep_fair(const Inbox& inbox, int64_t step);
KeptRows keep_random(const Inbox& inbox, const DropRule& rule);

}  // namespace spillway::plan
