#pragma once
// The one list of capacity policies.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "spillway/capacity/config.h"
#include "spillway/capacity/policy.h"

namespace spillway::capacity {

struct PolicyEntry {
  std::string_view name;  ///< value of `capacity.policy`
  std::unique_ptr<Policy> (*make)(const CapacityConfig& config);
  bool adaptive;              ///< its wish depends on the history
  std::string_view size_key;  ///< the config key to change when its capacity is too small
  std::string_view help;      ///< one line
};

std::span<const PolicyEntry> policy_table();
/// nullptr when there is no such policy.
const PolicyEntry* find_policy(std::string_view name);
/// Throws ConfigError, listing the names, when there is no such policy.
const PolicyEntry& policy_named(std::string_view name);
/// All names, for messages: "worst_case, fixed, factor, peak".
std::string policy_names();

}  // namespace spillway::capacity
