#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway::config {

/// The candidate nearest to a misspelt name: fewest insertions, deletions and replacements of one
/// character, at most 2 and fewer than the name has characters. Empty when none is that near.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace spillway::config
