#include "spillway/config/json.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "errors.h"
#include "json_reader.h"
#include "json_text.h"
#include "json_writer.h"
#include "later.h"

namespace spillway::config {
namespace {

Config from_json(Json root) {
  check_later(root);
  Config config;
  JsonReader reader(root, "");
  visit_fields(reader, config);
  reader.finish();
  return config;
}

[[noreturn]] void fail_file(const std::string& path, const std::string& reason) {
  constexpr size_t kMaxFileLength = 200;
  throw ConfigError(one_line(
      str("config file ", shortened(path, kMaxFileLength), " ", reason, "; allowed: a JSON file")));
}

std::string read_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail_file(path, "is a directory");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail_file(path, str("cannot be read (", std::generic_category().message(errno), ")"));
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) fail_file(path, "cannot be read to its end");
  return text.str();
}

// Only the parser checks this; text from the command line does not pass it.
void require_utf8(const std::string& text) {
  const Json json = text;
  try {
    (void)json.dump();
  } catch (const Json::type_error&) {
    fail("--set", shown(json), "UTF-8 text");
  }
}

// VALUE of an assignment: JSON, or a bare word.
Json set_value(const std::string& path, const std::string& text) {
  Json value;
  if (try_parse_json(text, path, value)) return value;
  constexpr std::string_view kStartsOfJson = "{[\"";
  if (!text.empty() && kStartsOfJson.find(text.front()) != std::string_view::npos) {
    fail(path, text, "JSON, or a bare word (what starts like JSON must be whole)");
  }
  return text;
}

void assign(Json& root, const std::string& assignment) {
  require_utf8(assignment);
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    fail("--set", in_quotes(assignment), "PATH=VALUE, as in train.steps=100");
  }
  const std::string path = assignment.substr(0, equals);
  Json value = set_value(path, assignment.substr(equals + 1));
  Json* node = &root;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    const std::string name = path.substr(begin, dot - begin);
    if (name.empty())
      fail("--set", in_quotes(assignment), "names joined by single dots, then =VALUE");
    if (!node->is_object()) {
      fail(begin == 0 ? "the config" : path.substr(0, begin - 1), shown(*node),
           str("an object, to set ", shortened(path, 80), " in it"));
    }
    node = &(*node)[name];
    if (dot == std::string::npos) break;
    if (node->is_null()) *node = Json::object();
    begin = dot + 1;
  }
  *node = std::move(value);
}

}  // namespace

Config parse(const std::string& json_text, const std::string& source) {
  return from_json(parse_json(json_text, source));
}

Config load(const std::string& path, const std::vector<std::string>& assignments) {
  Json root = parse_json(read_file(path), str("config file ", path));
  for (const std::string& assignment : assignments) assign(root, assignment);
  return from_json(std::move(root));
}

std::string apply_set(const std::string& json_text, const std::string& assignment) {
  Json root = parse_json(json_text, "config");
  assign(root, assignment);
  return root.dump(2);
}

std::string to_json_text(const Config& config, int indent) {
  // The field lists take what they visit by reference, so that one list reads and writes.
  Config visited = config;
  JsonWriter writer;
  visit_fields(writer, visited);
  return std::move(writer).take().dump(indent);
}

}  // namespace spillway::config
