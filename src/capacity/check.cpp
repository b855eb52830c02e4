#include "spillway/capacity/check.h"

#include <array>
#include <cmath>
#include <string_view>

#include "spillway/capacity/controller.h"
#include "spillway/capacity/policy_table.h"
#include "spillway/core/error.h"
#include "spillway/core/math.h"

namespace spillway::capacity {
namespace {

constexpr std::array<std::string_view, 7> kPlannedPolicies{"quantile", "ewma",   "aimd", "tutel",
                                                           "megatron", "budget", "cost"};
constexpr std::array<std::string_view, 2> kSimulatorPolicies{"oracle", "oracle_fixed"};
constexpr size_t kShownNameLength = 40;

template <class Names>
bool contains(const Names& names, std::string_view name) {
  for (const std::string_view candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

// Collects findings; one call a rule.
struct Findings {
  std::vector<Problem> problems;

  template <class Value>
  void require(bool good, const char* path, const Value& value, const std::string& allowed) {
    if (!good) problems.push_back({path, str("is ", value, "; allowed: ", allowed)});
  }
};

std::string shown(const std::string& name) {
  return name.size() <= kShownNameLength ? name : name.substr(0, kShownNameLength) + "...";
}

void check_policy_name(const std::string& name, Findings& findings) {
  if (find_policy(name) != nullptr) return;
  std::string allowed = policy_names();
  if (contains(kPlannedPolicies, name)) {
    allowed += " (this policy is not in this version)";
  } else if (contains(kSimulatorPolicies, name)) {
    allowed += " (this policy needs the future: simulator only)";
  }
  findings.require(false, "capacity.policy", str("\"", shown(name), "\""), allowed);
}

}  // namespace

std::vector<Problem> check(const CapacityConfig& config, int64_t alignment) {
  Findings findings;
  check_policy_name(config.policy, findings);
  // The alignment binds only a size that is in force: the default need not fit every alignment.
  const int64_t multiple = config.policy == "fixed" ? alignment : 1;
  SPILLWAY_CHECK(is_power_of_two(alignment), "alignment is ", alignment,
                 "; allowed: a power of two");
  findings.require(config.fixed.slots > 0 && config.fixed.slots % multiple == 0,
                   "capacity.fixed.slots", config.fixed.slots,
                   str("a positive multiple of moe.alignment = ", alignment));
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  const auto not_negative = [](double x) { return std::isfinite(x) && x >= 0; };
  findings.require(positive(config.factor.factor), "capacity.factor.factor", config.factor.factor,
                   "a number > 0");
  const PeakConfig& peak = config.peak;
  findings.require(peak.window_steps >= 1 && peak.window_steps <= kMaxWindowSteps,
                   "capacity.peak.window_steps", peak.window_steps, str("1 to ", kMaxWindowSteps));
  findings.require(not_negative(peak.margin), "capacity.peak.margin", peak.margin,
                   "a number >= 0 (fraction of the demand)");
  findings.require(peak.shrink_patience >= 1, "capacity.peak.shrink_patience", peak.shrink_patience,
                   ">= 1 (decisions)");
  findings.require(config.initial.worst_case || positive(config.initial.factor),
                   "capacity.initial.factor", config.initial.factor, "a number > 0");
  findings.require(config.warmup_steps >= 0, "capacity.warmup_steps", config.warmup_steps,
                   ">= 0 (steps)");
  findings.require(config.interval >= 1, "capacity.interval", config.interval, ">= 1 (steps)");
  findings.require(config.min_slots >= 0, "capacity.min_slots", config.min_slots, ">= 0 (slots)");
  findings.require(config.max_bytes >= 0, "capacity.max_bytes", config.max_bytes,
                   ">= 0 (bytes; 0 = no limit)");
  findings.require(not_negative(config.grow_margin), "capacity.grow_margin", config.grow_margin,
                   "a number >= 0 (fraction of the demand)");
  return findings.problems;
}

std::vector<Problem> check_warnings(const CapacityConfig& config, int64_t balanced_slots,
                                    int64_t ep) {
  std::vector<Problem> warnings;
  if (config.policy == "fixed" && config.fixed.slots < balanced_slots) {
    warnings.push_back(
        {"capacity.fixed.slots", str("is ", config.fixed.slots, ", below the balanced demand of ",
                                     balanced_slots, " slots: even perfect balance overflows")});
  }
  if (config.policy == "factor" && config.factor.factor < 1) {
    warnings.push_back(
        {"capacity.factor.factor",
         str("is ", config.factor.factor, ", below 1: even perfect balance overflows")});
  }
  if (config.policy != "worst_case" && pinned_to_worst_case(config, ep)) {
    warnings.push_back({"capacity.policy",
                        str("is \"", shown(config.policy),
                            "\", without effect at ep = 1: capacity is the worst case there unless "
                            "it is fixed or factor with on_overflow \"drop\" or \"skip\"")});
  }
  return warnings;
}

}  // namespace spillway::capacity
