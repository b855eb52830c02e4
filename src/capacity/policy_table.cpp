#include "spillway/capacity/policy_table.h"

#include <array>

#include "policies.h"
#include "spillway/core/error.h"

namespace spillway::capacity {
namespace {

constexpr std::array<PolicyEntry, 4> kPolicies{{
    {"worst_case", make_worst_case, false, "capacity.policy",
     "room for any routing: never overflows"},
    {"fixed", make_fixed, false, "capacity.fixed.slots", "a number of slots from the config"},
    {"factor", make_factor, false, "capacity.factor.factor", "a multiple of the balanced demand"},
    {"peak", make_peak, true, "capacity.peak.margin",
     "the largest demand of the last steps plus a margin, shrinking late"},
}};

}  // namespace

std::span<const PolicyEntry> policy_table() { return kPolicies; }

const PolicyEntry* find_policy(std::string_view name) {
  for (const PolicyEntry& entry : kPolicies) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

const PolicyEntry& policy_named(std::string_view name) {
  const PolicyEntry* entry = find_policy(name);
  if (entry == nullptr) {
    throw ConfigError(str("capacity.policy is \"", name, "\"; allowed: ", policy_names()));
  }
  return *entry;
}

std::string policy_names() {
  std::string names;
  for (const PolicyEntry& entry : kPolicies) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

}  // namespace spillway::capacity
