#pragma once
// Files of a test in a directory of its own, removed at the end.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "spillway/core/error.h"

namespace spillway::testing {

class TempFiles {
 public:
  TempFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "spillway_test_XXXXXX").string();
    SPILLWAY_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary folder ", name);
    folder_ = name;
  }
  ~TempFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TempFiles(const TempFiles&) = delete;
  TempFiles& operator=(const TempFiles&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream out(path(name), std::ios::binary);
    out << bytes;
    EXPECT_TRUE(out.good());
    return path(name);
  }
  /// A file of `size` zero bytes that takes no room on the disk.
  std::string write_sparse(const std::string& name, int64_t size) const {
    write(name, "");
    EXPECT_EQ(::truncate(path(name).c_str(), size), 0);
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace spillway::testing
