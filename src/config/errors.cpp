#include "errors.h"

#include <algorithm>

#include "suggestion.h"

namespace spillway::config {
namespace {

// Together they leave room for what is allowed.
constexpr size_t kMaxPathLength = 80;
constexpr size_t kMaxValueLength = 60;

bool inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

std::string shortened(std::string_view text, size_t limit) {
  constexpr std::string_view kDots = "...";
  if (text.size() <= limit) return std::string(text);
  size_t end = limit - kDots.size();
  while (end > 0 && inside_character(text[end])) --end;
  return str(text.substr(0, end), kDots);
}

std::string one_line(std::string_view text) {
  std::string line = shortened(text, kMaxErrorLength);
  std::replace_if(
      line.begin(), line.end(),
      [](char byte) { return static_cast<unsigned char>(byte) < ' ' || byte == '\x7f'; }, ' ');
  return line;
}

std::string in_quotes(std::string_view text) {
  return str('"', shortened(text, kMaxValueLength - 2), '"');
}

void fail(std::string_view path, std::string_view value, std::string_view allowed) {
  throw ConfigError(one_line(str(shortened(path, kMaxPathLength), " is ",
                                 shortened(value, kMaxValueLength), "; allowed: ", allowed)));
}

void fail_name(std::string_view path, std::string_view name, std::string_view shown_value,
               const std::vector<std::string>& names) {
  throw ConfigError(
      one_line(str(shortened(path, kMaxPathLength), " is ", shortened(shown_value, kMaxValueLength),
                   "; ", hint(name, names), "allowed: ", joined(names))));
}

std::string hint(std::string_view name, const std::vector<std::string>& names) {
  const std::string near = nearest(name, names);
  return near.empty() ? "" : str("did you mean \"", near, "\"? ");
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

}  // namespace spillway::config
