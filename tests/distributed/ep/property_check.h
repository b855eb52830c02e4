#pragma once
// One layer, forward and backward, held against the reference row by row. All values are small
// integers: every comparison is exact.

#include "distributed/ep/property_case.h"

namespace spillway::ep::test {

/// A call on a session that is bootstrapped with the case's config.
struct CheckedCall {
  World& w;
  const PropertyCase& c;
  const std::vector<std::vector<Choice>>& sources;  ///< the ranks of this group
  Sizing sizing = Sizing::kLive;
  int64_t capacity_before = 0;  ///< C of the layer
  int64_t capacity = 0;         ///< C that the call must have
  bool deep_copy = true;        ///< the handle lives in other memory once dispatch is over
};

/// What the ranks of the group must have, after everything else was compared with it.
std::vector<RankTruth> check_call(const CheckedCall& call);

}  // namespace spillway::ep::test
