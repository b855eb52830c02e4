#pragma once
// A temporary folder that all ranks of a job see, removed at the end.

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "spillway/comm/communicator.h"
#include "spillway/core/error.h"

namespace spillway::testing {

/// Both ends of its life are collectives of `world`.
class SharedFolder {
 public:
  explicit SharedFolder(comm::Communicator& world) : world_(world) {
    std::vector<std::byte> blob;
    if (world.rank() == 0) {
      std::string name = (std::filesystem::temp_directory_path() / "spillway_test_XXXXXX").string();
      SPILLWAY_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary folder ", name);
      const auto bytes = std::as_bytes(std::span(name));
      blob.assign(bytes.begin(), bytes.end());
    }
    world.broadcast_from_root(blob);
    path_.assign(reinterpret_cast<const char*>(blob.data()), blob.size());
  }
  ~SharedFolder() {
    world_.barrier();
    std::error_code ignored;
    if (world_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  comm::Communicator& world_;
  std::string path_;
};

}  // namespace spillway::testing
