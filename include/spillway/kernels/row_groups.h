#pragma once

#include <cstdint>
#include <span>

namespace spillway::kernels {

/// Runs of rows of one buffer: group g is rows [begin[g], begin[g] + rows[g]). Groups do not
/// overlap and ascend; rows between and behind them belong to nobody and are never read.
struct RowGroups {
  std::span<const int64_t> begin;
  std::span<const int64_t> rows;
  int64_t size() const { return static_cast<int64_t>(rows.size()); }
};

}  // namespace spillway::kernels
