#include "spillway/data/config.h"

#include "spillway/core/error.h"

namespace spillway::data {
namespace {

void check_paths(const char* key, const std::vector<std::string>& paths) {
  for (size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].empty()) {
      throw ConfigError(str("data.", key, "[", i, "] is \"\"; allowed: the path of a file"));
    }
  }
}

}  // namespace

void validate(const DataConfig& config) {
  if (config.train.empty()) {
    throw ConfigError("data.train is []; allowed: a list of at least one path");
  }
  check_paths("train", config.train);
  check_paths("valid", config.valid);
  if (config.seq < 1) {
    throw ConfigError(str("data.seq is ", config.seq, "; allowed: an integer of at least 1"));
  }
}

}  // namespace spillway::data
