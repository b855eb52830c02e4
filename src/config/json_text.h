#pragma once
// JSON text to JSON value, with the checks that the library leaves out.

#include <nlohmann/json.hpp>
#include <string>

namespace spillway::config {

/// Keeps the order of keys.
using Json = nlohmann::ordered_json;

/// Throws ConfigError: a syntax error (with `source`, line and column), a duplicate key, a number
/// out of range, objects nested too deep. `root` is the JSON path of the value.
Json parse_json(const std::string& text, const std::string& source, const std::string& root = "");

/// False when the text is no JSON at all; throws as above for a duplicate key.
bool try_parse_json(const std::string& text, const std::string& root, Json& value);

/// As text for an error message, shortened there.
std::string shown(const Json& value);

}  // namespace spillway::config
