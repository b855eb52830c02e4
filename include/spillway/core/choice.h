#pragma once
// Enums that a config names: one constexpr array of {name, value} pairs each, and functions
// that work on any of them.

#include <string>
#include <string_view>

namespace spillway {

/// The name of a value, "unknown" when the array lacks it.
template <class Choices, class Enum>
constexpr std::string_view choice_name(const Choices& choices, Enum value) {
  for (const auto& [name, choice] : choices) {
    if (choice == value) return name;
  }
  return "unknown";
}

/// False, and `value` untouched, when `text` is none of the names.
template <class Choices, class Enum>
constexpr bool parse_choice(const Choices& choices, std::string_view text, Enum& value) {
  for (const auto& [name, choice] : choices) {
    if (name != text) continue;
    value = choice;
    return true;
  }
  return false;
}

/// All names, for error messages: "layer, model".
template <class Choices>
std::string choice_list(const Choices& choices) {
  std::string list;
  for (const auto& [name, choice] : choices) {
    if (!list.empty()) list += ", ";
    list += name;
  }
  return list;
}

}  // namespace spillway
