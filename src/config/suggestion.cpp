#include "suggestion.h"

#include <algorithm>
#include <numeric>

namespace spillway::config {
namespace {

constexpr size_t kMaxDistance = 2;

// Levenshtein distance, one row of the table at a time.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::min(kMaxDistance + 1, name.size());
  for (const std::string& candidate : candidates) {
    // The lengths alone rule most out; the key of a config can be of any length.
    if (name.size() > candidate.size() + kMaxDistance) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

}  // namespace spillway::config
