#pragma once
// The visitor that reads one JSON object into a struct, strictly.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "json_text.h"
#include "spillway/capacity/config.h"
#include "spillway/core/choice.h"

namespace spillway::config {

class JsonReader {
 public:
  /// `path` is the JSON path of the object, "" for the whole config. Keeps a reference.
  JsonReader(const Json& object, std::string path);

  void field(std::string_view name, bool& value);
  void field(std::string_view name, int64_t& value);
  void field(std::string_view name, double& value);
  void field(std::string_view name, std::string& value);
  void field(std::string_view name, std::vector<std::string>& value);
  void initial(std::string_view name, capacity::Initial& value);

  template <class Enum, class Choices>
  void choice(std::string_view name, Enum& value, const Choices& choices) {
    const Json* json = find(name);
    if (json == nullptr) return;
    if (json->is_string() && parse_choice(choices, json->get_ref<const std::string&>(), value)) {
      return;
    }
    std::vector<std::string> names;
    for (const auto& [text, choice] : choices) names.emplace_back(text);
    fail_name(path_of(name), json->is_string() ? json->get_ref<const std::string&>() : "",
              shown(*json), names);
  }
  template <class Body>
  void object(std::string_view name, Body&& body) {
    const Json* json = find(name);
    if (json == nullptr) return;
    JsonReader inner(*json, path_of(name));
    body(inner);
    inner.finish();
  }

  /// Call after the last field: throws when the object has a key that none of them took.
  void finish() const;

 private:
  /// The value of a key, nullptr when absent. The key is known from now on.
  const Json* find(std::string_view name);
  std::string path_of(std::string_view name) const;

  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

}  // namespace spillway::config
