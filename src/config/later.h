#pragma once
// Keys and values of the documentation that this version lacks, in one list.

#include <string>
#include <vector>

#include "json_text.h"

namespace spillway::config {

/// Throws ConfigError when the config uses what this version lacks. Removes keys without a field
/// that have their neutral value, so that what is left is read strictly.
void check_later(Json& root);

/// Names of the fieldless keys directly under a path ("moe.router"): known, not misspelt.
std::vector<std::string> later_names(const std::string& path);

}  // namespace spillway::config
