#pragma once
// The factories that the policy table lists, one a file policy_<name>.cpp.

#include <memory>

#include "spillway/capacity/config.h"
#include "spillway/capacity/policy.h"

namespace spillway::capacity {

std::unique_ptr<Policy> make_worst_case(const CapacityConfig& config);
std::unique_ptr<Policy> make_fixed(const CapacityConfig& config);
std::unique_ptr<Policy> make_factor(const CapacityConfig& config);
std::unique_ptr<Policy> make_peak(const CapacityConfig& config);

}  // namespace spillway::capacity
