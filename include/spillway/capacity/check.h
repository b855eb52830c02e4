#pragma once
// Validation of the `capacity` section before anything is allocated.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/capacity/config.h"

namespace spillway::capacity {

/// The longest window of a policy, in steps; bounds the memory of the history.
inline constexpr int64_t kMaxWindowSteps = 100000;

/// One finding. `path` is the JSON path ("capacity.fixed.slots"), `text` the value and what is
/// allowed; together under 300 characters.
struct Problem {
  std::string path;
  std::string text;
};

/// Everything that is wrong, in the order of the keys; empty when the section is good.
/// `alignment` is `moe.alignment`. `max_bytes` against the memory of the buffers is not judged
/// here: that needs the model.
std::vector<Problem> check(const CapacityConfig& config, int64_t alignment);

/// What is allowed but probably not meant: a fixed or factor capacity below the balanced demand,
/// one that ep = 1 does not honour. `balanced_slots` is that of the largest micro-batch.
std::vector<Problem> check_warnings(const CapacityConfig& config, int64_t balanced_slots,
                                    int64_t ep);

}  // namespace spillway::capacity
