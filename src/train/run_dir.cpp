#include "spillway/train/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "spillway/core/error.h"

namespace spillway::train {

namespace fs = std::filesystem;

RunDirLock::~RunDirLock() {
  if (fd_ >= 0) close(fd_);
}

namespace {

RunDirLock lock_dir(const std::string& dir) {
  const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw ConfigError(str("run.dir: '", dir, "' cannot be opened"));
  RunDirLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    throw ConfigError(str("run.dir: '", dir, "' is in use by another job; name another directory"));
  }
  return lock;
}

}  // namespace

RunDirLock prepare_run_dir(const std::string& dir, const std::string& metrics_name, bool resuming) {
  std::error_code failure;
  if (fs::exists(dir, failure) && !fs::is_directory(dir, failure)) {
    throw ConfigError(str("run.dir: '", dir, "' is not a directory; name another"));
  }
  fs::create_directories(dir, failure);
  if (failure || access(dir.c_str(), W_OK) != 0) {
    throw ConfigError(str("run.dir: '", dir, "' cannot be written",
                          failure ? ": " + failure.message() : std::string()));
  }
  // First the lock: what stands in the directory may not change any more while it is looked at.
  RunDirLock lock = lock_dir(dir);
  if (resuming) return lock;
  for (const std::string& name : {metrics_name, std::string("checkpoints")}) {
    if (fs::exists(fs::path(dir) / name, failure)) {
      throw ConfigError(str("run.dir: '", dir, "' already holds ", name,
                            "; name another directory, or go on from it with --resume auto"));
    }
  }
  return lock;
}

}  // namespace spillway::train
