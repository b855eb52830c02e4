#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace spillway::data {

/// How a mapped file will be read: a hint to the system.
enum class Access { kRandom, kSequential };

/// A whole regular file mapped read-only. Move-only owner: the destructor unmaps. Nothing is read
/// until a byte is looked at, so opening costs the same for any size. The file must not be cut
/// short while it is mapped (the system answers a read past its end with SIGBUS).
class MappedFile {
 public:
  /// Throws DataError naming the path: missing, unreadable, not a regular file, empty.
  explicit MappedFile(const std::string& path, Access access = Access::kRandom);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int64_t size_bytes() const { return size_bytes_; }
  std::span<const uint8_t> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

 private:
  void unmap() noexcept;

  const uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace spillway::data
