#include "spillway/train/run_dir.h"

#include <unistd.h>

#include <filesystem>

#include "spillway/core/error.h"

namespace spillway::train {

namespace fs = std::filesystem;

void prepare_run_dir(const std::string& dir, const std::string& metrics_name) {
  std::error_code failure;
  if (fs::exists(dir, failure) && !fs::is_directory(dir, failure)) {
    throw ConfigError(str("run.dir: '", dir, "' is not a directory; name another"));
  }
  for (const std::string& name : {metrics_name, std::string("checkpoints")}) {
    if (fs::exists(fs::path(dir) / name, failure)) {
      throw ConfigError(str("run.dir: '", dir, "' already holds ", name,
                            "; name another directory or move that one away"));
    }
  }
  fs::create_directories(dir, failure);
  if (failure || access(dir.c_str(), W_OK) != 0) {
    throw ConfigError(str("run.dir: '", dir, "' cannot be written",
                          failure ? ": " + failure.message() : std::string()));
  }
}

}  // namespace spillway::train
