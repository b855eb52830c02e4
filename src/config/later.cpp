#include "later.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "errors.h"

namespace spillway::config {
namespace {

// To bring one of them into this version: give it a field and delete its row.
struct LaterKey {
  std::string_view path;
  /// JSON list of the values that act as if the key were absent.
  std::string_view neutral;
  /// JSON list of the values still to come; "": every value that is not neutral.
  std::string_view later = "";
  /// True when a struct has the key already, so that the strict reader sees it too.
  bool has_field = false;
};

constexpr LaterKey without_field(std::string_view path, std::string_view neutral) {
  return {path, neutral};
}
constexpr LaterKey values(std::string_view path, std::string_view now, std::string_view later) {
  return {path, now, later, true};
}

constexpr std::array kLaterKeys{
    values("parallel.transport", R"(["auto","self","mpi"])", R"(["nccl"])"),
    without_field("capacity.worst_case", "[{}]"),
    without_field("capacity.quantile", "[{}]"),
    without_field("capacity.ewma", "[{}]"),
    without_field("capacity.aimd", "[{}]"),
    without_field("capacity.tutel", "[{}]"),
    without_field("capacity.megatron", "[{}]"),
    without_field("capacity.budget", "[{}]"),
    without_field("capacity.cost", "[{}]"),
    without_field("capacity.shadow", "[[]]"),
    without_field("log.trace", "[false]"),
};

// The parent object of a dotted path and the last name of it; nullptr when it is not there.
Json* find_parent(Json& root, std::string_view path, std::string& name) {
  Json* node = &root;
  for (;;) {
    if (!node->is_object()) return nullptr;
    const size_t dot = path.find('.');
    name = std::string(path.substr(0, dot));
    if (!node->contains(name)) return nullptr;
    if (dot == std::string_view::npos) return node;
    node = &(*node)[name];
    path.remove_prefix(dot + 1);
  }
}

bool among(const Json& value, std::string_view list) {
  const Json values = Json::parse(list);
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

void check_later(Json& root) {
  for (const LaterKey& key : kLaterKeys) {
    std::string name;
    Json* const parent = find_parent(root, key.path, name);
    if (parent == nullptr) continue;
    const Json& value = (*parent)[name];
    const bool refused = key.later.empty() ? !among(value, key.neutral) : among(value, key.later);
    if (refused) {
      const std::string_view list = key.neutral.substr(1, key.neutral.size() - 2);
      fail(key.path, shown(value), str(list, " (this version has no other)"));
    }
    if (!key.has_field) parent->erase(name);
  }
}

std::vector<std::string> later_names(const std::string& path) {
  std::vector<std::string> names;
  for (const LaterKey& key : kLaterKeys) {
    const size_t dot = key.path.rfind('.');
    if (!key.has_field && key.path.substr(0, dot) == path) {
      names.emplace_back(key.path.substr(dot + 1));
    }
  }
  return names;
}

}  // namespace spillway::config
