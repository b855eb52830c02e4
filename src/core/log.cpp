#include "spillway/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace spillway::log {
namespace {

// The one piece of process-wide state: where text goes. It changes no result.
spdlog::logger& logger() {
  static spdlog::logger instance("spillway", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return instance;
}

spdlog::level::level_enum translate(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

void configure(int rank, Level level, bool only_rank0) {
  if (only_rank0 && rank != 0 && level < Level::kWarning) level = Level::kWarning;
  logger().set_level(translate(level));
  logger().set_pattern("[%H:%M:%S] [rank " + std::to_string(rank) + "] [%l] %v");
  logger().flush_on(spdlog::level::debug);
}

bool shown(Level level) { return level != Level::kOff && logger().should_log(translate(level)); }

void write(Level level, const std::string& text) {
  if (!shown(level)) return;
  // Passed as an argument, not as the format: text may hold braces.
  logger().log(translate(level), "{}", text);
}

}  // namespace spillway::log
