#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "spillway/kernels/row_groups.h"

namespace spillway::ops {

/// Which rows of a buffer belong to which expert: owned by the entries of a tape, shared.
struct Zones {
  std::vector<int64_t> begin;
  std::vector<int64_t> rows;
  kernels::RowGroups groups() const { return {begin, rows}; }
};
using ZonesPtr = std::shared_ptr<const Zones>;

/// One zone of all `num_rows` rows: a dense network.
inline ZonesPtr all_rows(int64_t num_rows) {
  return std::make_shared<const Zones>(Zones{{0}, {num_rows}});
}

}  // namespace spillway::ops
