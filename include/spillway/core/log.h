#pragma once
// The log front. One sink (stderr), one level, set once by main; messages carry the rank.

#include <string>
#include <string_view>

#include "spillway/core/error.h"

namespace spillway::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

/// Names the process in every line and sets the least level that is shown. `only_rank0`: other
/// ranks show warnings and errors only.
void configure(int rank, Level level, bool only_rank0 = true);
/// "debug", "info", "warning", "error", "off"; false when the name is none of these.
bool parse_level(std::string_view name, Level& level);
void write(Level level, const std::string& text);

template <typename... Parts>
void debug(const Parts&... parts) {
  write(Level::kDebug, str(parts...));
}
template <typename... Parts>
void info(const Parts&... parts) {
  write(Level::kInfo, str(parts...));
}
template <typename... Parts>
void warning(const Parts&... parts) {
  write(Level::kWarning, str(parts...));
}
template <typename... Parts>
void error(const Parts&... parts) {
  write(Level::kError, str(parts...));
}

}  // namespace spillway::log
