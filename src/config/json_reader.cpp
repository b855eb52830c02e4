#include "json_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "later.h"

namespace spillway::config {

JsonReader::JsonReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    fail(path_.empty() ? "the config" : path_, shown(object), "an object {...}");
  }
}

const Json* JsonReader::find(std::string_view name) {
  known_.emplace_back(name);
  const auto found = object_.find(known_.back());
  return found == object_.end() ? nullptr : &*found;
}

std::string JsonReader::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : str(path_, ".", name);
}

void JsonReader::field(std::string_view name, bool& value) {
  const Json* json = find(name);
  if (json == nullptr) return;
  if (!json->is_boolean()) fail(path_of(name), shown(*json), "true, false (a boolean)");
  value = json->get<bool>();
}

void JsonReader::field(std::string_view name, int64_t& value) {
  const Json* json = find(name);
  if (json == nullptr) return;
  // The library reads what exceeds 64 bits as a float, so that it is refused here too.
  const bool too_large =
      json->is_number_unsigned() &&
      json->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!json->is_number_integer() || too_large) {
    fail(path_of(name), shown(*json), "an integer of 64 bits, written without point or exponent");
  }
  value = json->get<int64_t>();
}

void JsonReader::field(std::string_view name, double& value) {
  const Json* json = find(name);
  if (json == nullptr) return;
  if (!json->is_number()) fail(path_of(name), shown(*json), "a number");
  value = json->get<double>();
}

void JsonReader::field(std::string_view name, std::string& value) {
  const Json* json = find(name);
  if (json == nullptr) return;
  if (!json->is_string()) fail(path_of(name), shown(*json), "a string");
  value = json->get<std::string>();
}

void JsonReader::field(std::string_view name, std::vector<std::string>& value) {
  const Json* json = find(name);
  if (json == nullptr) return;
  if (!json->is_array()) fail(path_of(name), shown(*json), "a list of strings [\"...\"]");
  std::vector<std::string> items;
  for (const Json& item : *json) {
    if (!item.is_string()) {
      fail(str(path_of(name), "[", items.size(), "]"), shown(item), "a string");
    }
    items.push_back(item.get<std::string>());
  }
  value = std::move(items);
}

void JsonReader::initial(std::string_view name, capacity::Initial& value) {
  const Json* json = find(name);
  if (json == nullptr) return;
  if (*json == "worst_case") {
    value = {};
    return;
  }
  if (!json->is_object() || json->size() != 1 || !json->contains("factor")) {
    fail(path_of(name), shown(*json), R"("worst_case" or {"factor": f})");
  }
  capacity::Initial read{.worst_case = false};
  JsonReader inner(*json, path_of(name));
  inner.field("factor", read.factor);
  value = read;
}

void JsonReader::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    std::vector<std::string> names = known_;
    for (std::string& later : later_names(path_)) names.push_back(std::move(later));
    throw ConfigError(one_line(str(shortened(path_of(key), 80), " is no known key (its value is ",
                                   shortened(shown(value), 40), "); ", hint(key, names),
                                   "allowed: ", joined(names))));
  }
}

}  // namespace spillway::config
