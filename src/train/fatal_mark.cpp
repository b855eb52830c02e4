#include "spillway/train/fatal_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "spillway/core/error.h"

namespace spillway::train {
namespace {
std::string mark_path(const std::string& run_dir) { return run_dir + "/fatal"; }
}  // namespace

bool claim_fatal_mark(const std::string& run_dir, int rank, const std::string& message) {
  const int fd = open(mark_path(run_dir).c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
  if (fd < 0) return errno != EEXIST;
  const std::string text = str("rank ", rank, ": ", message, "\n");
  // The mark is the file itself; its text is a courtesy.
  const ssize_t written = ::write(fd, text.data(), text.size());
  static_cast<void>(written);
  close(fd);
  return true;
}

void remove_fatal_mark(const std::string& run_dir) { unlink(mark_path(run_dir).c_str()); }

}  // namespace spillway::train
