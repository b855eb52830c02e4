#include "spillway/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "spillway/core/error.h"
#include "spillway/core/log.h"

namespace spillway::data {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw DataError(str("data file \"", path, "\": ", why));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path, Access access) {
  // O_NONBLOCK: a pipe given by mistake must be refused below, not waited for.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(path, str("cannot be opened: ", std::strerror(errno)));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) fail(path, str("fstat: ", std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) fail(path, "is a directory; a file is needed");
  if (!S_ISREG(info.st_mode)) fail(path, "is not a regular file");
  if (info.st_size == 0) fail(path, "is empty");

  void* const mapping =
      ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) {
    fail(path, str("cannot be mapped (", info.st_size, " bytes): ", std::strerror(errno)));
  }
  data_ = static_cast<const uint8_t*>(mapping);
  size_bytes_ = info.st_size;
  // Where sequences are read in a shuffled order, read-ahead would only fill memory. A hint, so a
  // refusal changes nothing but speed.
  (void)::madvise(mapping, static_cast<size_t>(size_bytes_),
                  access == Access::kRandom ? MADV_RANDOM : MADV_SEQUENTIAL);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (data_ == nullptr) return;
  if (::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_bytes_)) != 0) {
    log::error("munmap of ", size_bytes_, " bytes: ", std::strerror(errno));
  }
  data_ = nullptr;
  size_bytes_ = 0;
}

}  // namespace spillway::data
