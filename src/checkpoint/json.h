#pragma once
// JSON of checkpoint files: parsed strictly, taken apart with named errors.

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::checkpoint {

/// Keeps the order of the keys. Its look-up is linear: not for objects with thousands of keys.
using OrderedJson = nlohmann::ordered_json;
using Json = nlohmann::json;

/// What a file holds, an object. A key that an object has twice, a syntax error (with its byte) and
/// another type are DataErrors naming `file`.
template <typename J>
J parse_json(const std::string& file, std::string_view text) {
  const auto fail = [&file](const std::string& why) {
    throw DataError(str("checkpoint file \"", file, "\": ", why));
  };
  std::vector<std::set<std::string>> keys;
  const auto follow = [&](int, typename J::parse_event_t event, J& parsed) {
    using Event = typename J::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fail(str("key \"", key, "\" stands there twice"));
    }
    return true;
  };
  try {
    J json = J::parse(text.begin(), text.end(), follow);
    if (!json.is_object()) fail(str("holds a JSON ", json.type_name(), "; allowed: an object"));
    return json;
  } catch (const nlohmann::json::parse_error& error) {
    fail(str("is not JSON at byte ", error.byte));
  }
  return {};
}

}  // namespace spillway::checkpoint
