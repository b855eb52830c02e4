#pragma once
// Files and folders that outlast a crash of the machine. Every function throws Error naming the
// path and the system's reason.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "checksum.h"
#include "spillway/checkpoint/safetensors.h"

namespace spillway::checkpoint {

/// A new file, written from front to end. Move-only by being neither: it lives in one scope.
class NewFile {
 public:
  /// Refuses a path that exists.
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Waits for the disk and closes.
  FileFacts finish();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int fd_;
  int64_t bytes_ = 0;
  int64_t flushed_ = 0;  // bytes that the system was asked to write back
  Checksum checksum_;
};

/// A new file with this text, on the disk.
FileFacts write_text(const std::string& path, std::string_view text);
/// The text of a file of at most `max_bytes`. Throws DataError.
std::string read_text(const std::string& path, int64_t max_bytes);

/// The entries of a folder (names of files in it) are on the disk.
void sync_folder(const std::string& path);
void make_folder(const std::string& path);
/// Replaces `to` when it is a file.
void rename_path(const std::string& from, const std::string& to);
/// Two paths exchange what they name, at once. False when the file system cannot do it.
bool exchange_paths(const std::string& a, const std::string& b);
/// A file, or a folder with all that is in it; nothing when there is none.
void remove_path(const std::string& path);
bool exists(const std::string& path);

}  // namespace spillway::checkpoint
