#include "files.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "spillway/core/error.h"
#include "spillway/core/log.h"

namespace spillway::checkpoint {
namespace {

namespace fs = std::filesystem;

// The disk starts on what is written while more comes: waiting at the end is shorter.
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;

[[noreturn]] void fail_path(const std::string& path, const char* what, int error) {
  throw Error(str("checkpoint file \"", path, "\": ", what, ": ", std::strerror(error)));
}

void check(const std::error_code& code, const std::string& path, const char* what) {
  if (code) throw Error(str("checkpoint file \"", path, "\": ", what, ": ", code.message()));
}

}  // namespace

NewFile::NewFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail("cannot be made");
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);  // after an error only: that one is on its way
}

void NewFile::fail(const char* what) const { fail_path(path_, what, errno); }

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Checksum and write a piece while the caches have it.
    const std::span<const std::byte> piece =
        bytes.first(std::min(bytes.size(), static_cast<size_t>(Checksum::kChunkBytes)));
    checksum_.update(piece);
    for (size_t done = 0; done < piece.size();) {
      const ssize_t count = ::write(fd_, piece.data() + done, piece.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("cannot be written");
      done += static_cast<size_t>(count);
    }
    bytes_ += static_cast<int64_t>(piece.size());
    bytes = bytes.subspan(piece.size());
    if (bytes_ - flushed_ >= kWriteBackBytes) {
      (void)::sync_file_range(fd_, flushed_, bytes_ - flushed_, SYNC_FILE_RANGE_WRITE);
      flushed_ = bytes_;
    }
  }
}

FileFacts NewFile::finish() {
  if (::fsync(fd_) != 0) fail("cannot be written to the disk (fsync)");
  if (::close(std::exchange(fd_, -1)) != 0) fail("cannot be closed");
  return {.bytes = bytes_, .checksum = checksum_.digest()};
}

FileFacts write_text(const std::string& path, std::string_view text) {
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)));
  return file.finish();
}

std::string read_text(const std::string& path, int64_t max_bytes) {
  const data::MappedFile file(path, data::Access::kSequential);
  if (file.size_bytes() > max_bytes) {
    throw DataError(str("checkpoint file \"", path, "\": ", file.size_bytes(),
                        " bytes; allowed: at most ", max_bytes));
  }
  const auto bytes = file.bytes();
  return {bytes.begin(), bytes.end()};
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_path(path, "cannot be opened", errno);
  const int failed = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (failed != 0) fail_path(path, "fsync", failed);
}

void make_folder(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  check(code, path, "the folder cannot be made");
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code code;
  fs::rename(from, to, code);
  check(code, from, "cannot be renamed");
}

bool exchange_paths(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail_path(a, "cannot be exchanged", errno);
}

void remove_path(const std::string& path) {
  std::error_code code;
  fs::remove_all(path, code);
  check(code, path, "cannot be removed");
}

bool exists(const std::string& path) {
  std::error_code code;
  const bool found = fs::exists(path, code);
  check(code, path, "cannot be looked for");  // else what cannot be seen now would be removed
  return found;
}

}  // namespace spillway::checkpoint
