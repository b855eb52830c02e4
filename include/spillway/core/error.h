#pragma once
// The one error vocabulary. Checks throw; only main catches, logs the rank and ends the job with
// `exit_code()`. Nothing below main calls exit or prints.

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace spillway {

/// Exit codes of the programs (and of mpirun through them).
enum class ExitCode : int {
  kDone = 0,
  kOther = 1,
  kConfig = 2,
  kOverflow = 3,
  kData = 4,
  kCommunication = 5,
  kDiverged = 6,
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, ExitCode code = ExitCode::kOther)
      : std::runtime_error(what), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

/// Bad command line or config. The text names the JSON path, the value and what is allowed.
struct ConfigError : Error {
  explicit ConfigError(const std::string& what) : Error(what, ExitCode::kConfig) {}
};
/// Bad or missing data or checkpoint.
struct DataError : Error {
  explicit DataError(const std::string& what) : Error(what, ExitCode::kData) {}
};
/// Communication failed, or replicas differ.
struct CommError : Error {
  explicit CommError(const std::string& what) : Error(what, ExitCode::kCommunication) {}
};
/// Loss or gradients are not finite and the config says to stop.
struct DivergedError : Error {
  explicit DivergedError(const std::string& what) : Error(what, ExitCode::kDiverged) {}
};

/// Concatenates anything that an ostream can print: `str("rows ", 3, " of ", 4)`.
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));  // no parts: no effect, and no warning
  return out.str();
}

/// "src/core/log.cpp:12": the path from the top folder of the repository on, wherever it was built.
std::string source_place(std::string_view file, int line);

namespace detail {
[[noreturn]] void throw_check(std::string_view expression, std::string_view file, int line,
                              const std::string& text);
}  // namespace detail
}  // namespace spillway

/// Throws `spillway::Error`: the given text parts, then the expression and its place. The parts are
/// evaluated only when the condition is false.
#define SPILLWAY_CHECK(condition, ...)                                \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::spillway::detail::throw_check(#condition, __FILE__, __LINE__, \
                                      ::spillway::str(__VA_ARGS__));  \
  } while (false)
