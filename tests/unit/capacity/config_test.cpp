// The field list of the `capacity` section, driven the way a parser and a dumper drive it.

#include "spillway/capacity/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "spillway/capacity/policy_table.h"

namespace spillway::capacity {
namespace {

// Writes every value as text under its path, as a dumper would.
struct Dumper {
  std::map<std::string, std::string>& values;
  std::string prefix;

  void put(const char* name, const std::string& text) {
    EXPECT_TRUE(values.emplace(prefix + name, text).second) << name << " visited twice";
  }
  void field(const char* name, const std::string& value) { put(name, value); }
  void field(const char* name, int64_t value) { put(name, std::to_string(value)); }
  void field(const char* name, double value) { put(name, std::to_string(value)); }
  template <class Enum, class Choices>
  void choice(const char* name, Enum value, const Choices& choices) {
    put(name, std::string(choice_name(choices, value)));
  }
  void initial(const char* name, const Initial& value) {
    put(name, value.worst_case ? "worst_case" : std::to_string(value.factor));
  }
  template <class Function>
  void object(const char* name, Function function) {
    Dumper inner{values, prefix + name + "."};
    function(inner);
  }
};

std::map<std::string, std::string> dump(CapacityConfig config) {
  std::map<std::string, std::string> values;
  Dumper dumper{values, ""};
  visit_fields(dumper, config);
  return values;
}

// Gives every field a value that is not its default.
struct Changer {
  void field(const char*, std::string& value) { value += "_other"; }
  void field(const char*, int64_t& value) { value += 7; }
  void field(const char*, double& value) { value += 0.5; }
  template <class Enum, class Choices>
  void choice(const char*, Enum& value, const Choices& choices) {
    value = choices.back().second;
  }
  void initial(const char*, Initial& value) { value = {.worst_case = false, .factor = 2.5}; }
  template <class Function>
  void object(const char*, Function function) {
    function(*this);
  }
};

TEST(CapacityConfigFields, AreExactlyTheDocumentedKeys) {
  std::set<std::string> keys;
  for (const auto& [key, value] : dump({})) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{
                      "policy", "fixed.slots", "factor.factor", "peak.window_steps", "peak.margin",
                      "peak.shrink_patience", "scope", "on_overflow", "initial", "warmup_steps",
                      "interval", "min_slots", "max_bytes", "grow_margin", "eval", "reconfigure"}));
}

TEST(CapacityConfigFields, Defaults) {
  const auto values = dump({});
  const std::map<std::string, std::string> documented{
      {"policy", "worst_case"},  {"scope", "layer"},        {"on_overflow", "fail"},
      {"initial", "worst_case"}, {"warmup_steps", "20"},    {"interval", "1"},
      {"min_slots", "0"},        {"max_bytes", "0"},        {"grow_margin", "0.100000"},
      {"eval", "lossless"},      {"reconfigure", "buffers"}};
  for (const auto& [key, value] : documented) EXPECT_EQ(values.at(key), value) << key;
}

TEST(CapacityConfigFields, EveryVisitReachesTheConfig) {
  CapacityConfig config;
  const auto before = dump(config);
  Changer changer;
  visit_fields(changer, config);
  const auto after = dump(config);
  for (const auto& [key, value] : before) EXPECT_NE(after.at(key), value) << key;
}

TEST(CapacityConfigFields, EveryPolicyWithASizeOfItsOwnHasAnObjectOfItsName) {
  const auto values = dump({});
  for (const PolicyEntry& entry : policy_table()) {
    if (entry.size_key == "capacity.policy") continue;
    const std::string key(entry.size_key.substr(std::string_view("capacity.").size()));
    EXPECT_TRUE(values.contains(key)) << entry.size_key;
    EXPECT_TRUE(key.starts_with(std::string(entry.name) + ".")) << entry.size_key;
  }
}

template <class Choices, class Enum>
void expect_round_trip(const Choices& choices, Enum other) {
  std::set<std::string_view> names;
  for (const auto& [name, value] : choices) {
    Enum parsed = other;
    EXPECT_TRUE(parse_choice(choices, name, parsed)) << name;
    EXPECT_EQ(parsed, value);
    EXPECT_EQ(choice_name(choices, value), name);
    EXPECT_TRUE(names.insert(name).second) << name << " listed twice";
  }
  Enum untouched = other;
  EXPECT_FALSE(parse_choice(choices, "none of them", untouched));
  EXPECT_EQ(untouched, other);
}

TEST(CapacityChoices, OnOverflow) {
  expect_round_trip(kOnOverflowChoices, OnOverflow::kSkip);
  EXPECT_EQ(choice_list(kOnOverflowChoices), "fail, drop, grow, skip");
}

TEST(CapacityChoices, Scope) {
  expect_round_trip(kScopeChoices, Scope::kModel);
  EXPECT_EQ(choice_list(kScopeChoices), "layer, model");
}

TEST(CapacityChoices, Eval) {
  expect_round_trip(kEvalChoices, EvalCapacity::kSame);
  EXPECT_EQ(choice_list(kEvalChoices), "lossless, same");
}

TEST(CapacityChoices, Reconfigure) {
  expect_round_trip(kReconfigureChoices, Reconfigure::kCommunicator);
  EXPECT_EQ(choice_list(kReconfigureChoices), "buffers, communicator");
}

}  // namespace
}  // namespace spillway::capacity
