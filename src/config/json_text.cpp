#include "json_text.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.h"

namespace spillway::config {
namespace {

// No documented value is deeper than 5; unlimited nesting would cost unlimited stack.
constexpr int kMaxDepth = 32;

// Follows the parser through the text: knows the path of the value it is at, and the keys that
// each open object already has.
class PathTracker {
 public:
  explicit PathTracker(std::string root) : root_(std::move(root)) {}

  void follow(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        next_element();
        levels_.push_back({.is_array = event == Event::array_start});
        if (depth > kMaxDepth) {
          fail(path(), "nested too deep", str("at most ", kMaxDepth, " levels"));
        }
        break;
      case Event::object_end:
      case Event::array_end:
        levels_.pop_back();
        break;
      case Event::key:
        add_key(parsed.get_ref<const std::string&>());
        break;
      case Event::value:
        next_element();
        break;
    }
  }

  std::string path() const {
    std::string path = root_;
    for (const Level& level : levels_) {
      if (level.is_array) {
        path += str('[', level.index, ']');
      } else if (!level.key.empty()) {
        path += str(path.empty() ? "" : ".", level.key);
      }
    }
    return path.empty() ? "the config" : path;
  }

 private:
  struct Level {
    bool is_array = false;
    int64_t index = -1;
    std::string key;
    std::set<std::string> keys;
  };

  void next_element() {
    if (!levels_.empty() && levels_.back().is_array) ++levels_.back().index;
  }
  void add_key(const std::string& key) {
    Level& level = levels_.back();
    level.key = key;
    if (!level.keys.insert(key).second) fail(path(), "given twice", "each key once in an object");
  }

  std::string root_;
  std::vector<Level> levels_;
};

Json parse_tracked(const std::string& text, PathTracker& tracker) {
  return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
    tracker.follow(depth, event, parsed);
    return true;
  });
}

// `byte` counts from 1. The library's own column is 0 when a number ends the line.
std::string place_in(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  return str("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
             before.size() - line_start + 1);
}

// From the library's "[json.exception...] parse error at line L, column C: REASON".
std::string_view reason_of(std::string_view what) {
  const size_t column = what.find("column ");
  const size_t colon = what.find(": ", column == std::string_view::npos ? 0 : column);
  return colon == std::string_view::npos ? what : what.substr(colon + 2);
}

// The library's text ends with the number in single quotes.
[[noreturn]] void fail_out_of_range(const PathTracker& tracker, std::string_view what) {
  const size_t quote = what.find('\'');
  std::string_view number = quote == std::string_view::npos ? what : what.substr(quote + 1);
  if (number.ends_with('\'')) number.remove_suffix(1);
  fail(tracker.path(), number, "a number of at most 1.7e308");
}

}  // namespace

Json parse_json(const std::string& text, const std::string& source, const std::string& root) {
  constexpr size_t kMaxSourceLength = 100;
  PathTracker tracker(root);
  try {
    return parse_tracked(text, tracker);
  } catch (const Json::parse_error& error) {
    throw ConfigError(one_line(str(shortened(source, kMaxSourceLength), " is not JSON; ",
                                   place_in(text, error.byte), ": ", reason_of(error.what()))));
  } catch (const Json::out_of_range& error) {
    fail_out_of_range(tracker, error.what());
  }
}

bool try_parse_json(const std::string& text, const std::string& root, Json& value) {
  PathTracker tracker(root);
  try {
    value = parse_tracked(text, tracker);
    return true;
  } catch (const Json::parse_error&) {
    return false;
  } catch (const Json::out_of_range& error) {
    fail_out_of_range(tracker, error.what());
  }
}

std::string shown(const Json& value) {
  // Text that is no UTF-8 can come from the command line; it must not break its own message.
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace spillway::config
