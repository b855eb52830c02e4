#pragma once
// Config from and to JSON text. Strict: an unknown key, a duplicate key, a wrong type and a key
// or value that this version lacks are ConfigErrors (exit code 2). Their text is one line under
// 300 characters that holds the JSON path, the value and what is allowed.

#include <string>
#include <vector>

#include "spillway/config/config.h"

namespace spillway::config {

/// Absent keys keep their defaults. Syntax errors name `source`, line and column.
Config parse(const std::string& json_text, const std::string& source = "config");

/// Reads a file, then applies each "a.b.c=VALUE" of `assignments` in order. A file that cannot be
/// read is a ConfigError naming it.
Config load(const std::string& path, const std::vector<std::string>& assignments = {});

/// The JSON text with one value replaced or added, as `--set a.b.c=VALUE` does. VALUE is JSON; a
/// bare word that is not JSON is taken as a string ("run.dir=runs/x"). Objects on the way are
/// made; whether the path exists is for `parse` to tell.
std::string apply_set(const std::string& json_text, const std::string& assignment);

/// The resolved config: every key with its value, in the order of the field lists. `indent` < 0:
/// one line. `parse` of it gives the same config back, to the bit.
std::string to_json_text(const Config& config, int indent = 2);

}  // namespace spillway::config
