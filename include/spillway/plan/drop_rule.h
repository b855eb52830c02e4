#pragma once
// Which assignments a rank loses when it overflows, and the call for which it is decided.

#include <cstdint>

#include "spillway/plan/drop_order.h"

namespace spillway::plan {

/// A drop order with what it draws on: `seed` and the call name the hash of kRandom, `step` turns
/// the ties of kFair. kTail and kScore use neither.
struct DropRule {
  DropOrder order = DropOrder::kTail;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t micro_batch = 0;
  int64_t layer = 0;
};

/// State of the hash of kRandom for one cell (global expert, source rank of the group): the key of
/// its assignment number `ordinal` in token order is hash_chain(state, ordinal). Depends on every
/// field of the rule but `order`.
uint64_t random_cell_state(const DropRule& rule, int64_t expert, int64_t source);

}  // namespace spillway::plan
