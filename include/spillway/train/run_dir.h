#pragma once

#include <string>
#include <utility>

namespace spillway::train {

/// Says that a job uses a run directory: an advisory lock on the directory itself, which the system
/// drops with the process, whatever ends it. Move-only.
class RunDirLock {
 public:
  RunDirLock() = default;
  explicit RunDirLock(int fd) : fd_(fd) {}
  ~RunDirLock();
  RunDirLock(RunDirLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RunDirLock& operator=(RunDirLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

 private:
  int fd_ = -1;
};

/// Makes the run directory and locks it, or throws ConfigError naming `run.dir`: another job uses
/// it, it holds metrics or checkpoints of another run (unless `resuming`), is a file, or cannot be
/// written. Rank 0 only.
RunDirLock prepare_run_dir(const std::string& dir, const std::string& metrics_name, bool resuming);

}  // namespace spillway::train
