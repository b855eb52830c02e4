#include <map>

#include "file_errors.h"
#include "files.h"
#include "json.h"
#include "layout.h"
#include "weight_source.h"

namespace spillway::checkpoint {
namespace {

// Tensor -> name of its file.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json json = parse_json<Json>(path, read_text(path, kMaxTextBytes));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) fail_file(path, "has no object \"weight_map\"");
  std::map<std::string, std::string> files;
  for (const auto& item : map->items()) {
    const Json& file = item.value();
    const bool plain = file.is_string() && !file.get_ref<const std::string&>().empty() &&
                       file.get_ref<const std::string&>().find('/') == std::string::npos;
    if (!plain) {
      fail_file(path, str("tensor \"", item.key(), "\" is in ", file.dump(),
                          "; allowed: the name of a file of this folder"));
    }
    files.emplace(item.key(), file.get<std::string>());
  }
  if (files.empty()) fail_file(path, "\"weight_map\" names no tensor");
  return files;
}

}  // namespace

Files open_weight_files(const std::string& folder) {
  Files files;
  const std::string single = folder + "/" + kSingleFile, index = folder + "/" + kIndexFile;
  if (exists(single)) {
    files.push_back(std::make_unique<SafetensorsFile>(single));
    return files;
  }
  if (!exists(index)) {
    throw DataError(
        str("checkpoint \"", folder, "\": holds neither ", kSingleFile, " nor ", kIndexFile));
  }
  const std::map<std::string, std::string> listed = read_index(index);
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const auto& [tensor, name] : listed) {
    const auto [it, fresh] = by_name.emplace(name, nullptr);
    if (fresh) {
      files.push_back(std::make_unique<SafetensorsFile>(folder + "/" + name));
      it->second = files.back().get();
    }
    if (it->second->find(tensor) == nullptr) {
      fail_file(it->second->path(),
                str("has no tensor \"", tensor, "\", which ", kIndexFile, " says to be in it"));
    }
  }
  for (const auto& [name, file] : by_name) {
    for (const SafetensorsFile::Entry& entry : file->entries()) {
      const auto it = listed.find(entry.name);
      if (it != listed.end() && it->second == name) continue;
      fail_file(file->path(), str("tensor \"", entry.name, "\" is not in it by ", kIndexFile));
    }
  }
  return files;
}

}  // namespace spillway::checkpoint
