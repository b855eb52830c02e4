#pragma once
// Texts of config errors: one line, under 300 characters, whatever the config holds.

#include <string>
#include <string_view>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::config {

/// No error text is longer, in bytes.
inline constexpr size_t kMaxErrorLength = 299;

/// At most `limit` bytes, "..." in place of the rest; never cuts inside a UTF-8 character.
std::string shortened(std::string_view text, size_t limit);
/// Control characters become spaces, the length is limited.
std::string one_line(std::string_view text);
/// In double quotes, shortened.
std::string in_quotes(std::string_view text);

/// Throws ConfigError "PATH is VALUE; allowed: ALLOWED".
[[noreturn]] void fail(std::string_view path, std::string_view value, std::string_view allowed);
/// The same for a name that is none of `names`: a near one is suggested.
[[noreturn]] void fail_name(std::string_view path, std::string_view name,
                            std::string_view shown_value, const std::vector<std::string>& names);
/// "did you mean "NAME"? ", or nothing.
std::string hint(std::string_view name, const std::vector<std::string>& names);
/// "a, b, c".
std::string joined(const std::vector<std::string>& names);

}  // namespace spillway::config
