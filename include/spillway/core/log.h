#pragma once
// The log front. One sink (stderr), one level, set once by main; messages carry the rank.

#include <string>

#include "spillway/core/error.h"

namespace spillway::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

/// Names the process in every line and sets the least level that is shown. `only_rank0`: ranks
/// above 0 show warnings and errors at most. Before the first call: kInfo, lines without a rank.
void configure(int rank, Level level, bool only_rank0 = true);
/// True when a message of this level would be written. Nothing is ever written at kOff.
bool shown(Level level);
/// One line, flushed; nothing when the level is not shown. Any thread may call it.
void write(Level level, const std::string& text);

/// The parts, printed one after the other as by `str`, and only if the level is shown.
template <typename... Parts>
void message(Level level, const Parts&... parts) {
  if (shown(level)) write(level, str(parts...));
}
template <typename... Parts>
void debug(const Parts&... parts) {
  message(Level::kDebug, parts...);
}
template <typename... Parts>
void info(const Parts&... parts) {
  message(Level::kInfo, parts...);
}
template <typename... Parts>
void warning(const Parts&... parts) {
  message(Level::kWarning, parts...);
}
template <typename... Parts>
void error(const Parts&... parts) {
  message(Level::kError, parts...);
}

}  // namespace spillway::log
