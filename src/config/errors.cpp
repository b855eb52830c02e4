#include "errors.h"

#include <algorithm>

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

}  // namespace spillway::config
