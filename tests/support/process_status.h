#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace spillway::testing {

/// A line of /proc/self/status in KiB; -1 when there is none of that name.
inline int64_t status_kib(const std::string& key) {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word) {
    int64_t value = -1;
    if (word == key + ":" && in >> value) return value;
  }
  return -1;
}

}  // namespace spillway::testing
