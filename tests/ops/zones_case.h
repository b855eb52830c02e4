#pragma once
// Zones of a buffer for tests: rows outside them hold NaN and must not matter.

#include <limits>

#include "op_test.h"
#include "spillway/ops/zones.h"

namespace spillway::ops {

struct ZonesCase {
  int64_t capacity = 0;
  std::vector<int64_t> begin, rows;

  ZonesPtr zones() const { return std::make_shared<const Zones>(Zones{begin, rows}); }
  int64_t used() const {
    int64_t total = 0;
    for (const int64_t count : rows) total += count;
    return total;
  }
  std::vector<bool> used_rows() const {
    std::vector<bool> mask(static_cast<size_t>(capacity), false);
    for (size_t g = 0; g < rows.size(); ++g) {
      for (int64_t r = 0; r < rows[g]; ++r) mask[static_cast<size_t>(begin[g] + r)] = true;
    }
    return mask;
  }
  /// Random rows in the zones, NaN in the others. Dimension 0 of `shape` is the capacity.
  Tensor input(Context& ctx, Shape shape, uint64_t seed) const {
    Tensor tensor = f64(ctx, shape, seed);
    const std::vector<bool> mask = used_rows();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if (!mask[static_cast<size_t>(i / (tensor.numel() / capacity))]) {
        tensor.data<double>()[i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
    return tensor;
  }
};

}  // namespace spillway::ops
