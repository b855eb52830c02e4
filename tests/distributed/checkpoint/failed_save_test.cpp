// A rank that cannot write: every rank gets the same error, nobody waits for anybody, and the older
// checkpoints are whole.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "support/checkpoint_fixture.h"
#include "support/shared_folder.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

constexpr int kOldSalt = 1, kNewSalt = 2;

/// Files may not grow beyond `bytes`: write fails as on a full disk (EFBIG for ENOSPC). Without
/// SIGXFSZ ignored the system would end the process.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

class FailedSave : public ::testing::TestWithParam<int> {
 protected:
  FailedSave()
      : world_(comm::make_mpi_world()),
        folder_(*world_),
        topology_(*world_, world_->size()),
        replica_(topology_, qwen_case(), DType::kBF16, true) {
    replica_.fill(kOldSalt);
    save(replica_.ctx, folder_.path(), replica_.parts(), state_at(1), 2);
    replica_.fill(kNewSalt);
  }

  std::string failing_save() {
    return testing::error_of(
        [&] { save(replica_.ctx, folder_.path(), replica_.parts(), state_at(2), 2); });
  }
  /// Equal texts on every rank.
  void expect_same(const std::string& text) {
    std::string padded = text;
    padded.resize(2000);
    std::string all(padded.size() * static_cast<size_t>(world_->size()), '\0');
    world_->all_gather(padded.data(), all.data(), static_cast<int64_t>(padded.size()));
    for (size_t rank = 0; rank < static_cast<size_t>(world_->size()); ++rank) {
      EXPECT_EQ(all.substr(rank * padded.size(), padded.size()), padded);
    }
  }
  void expect_old_one_whole() {
    EXPECT_EQ(files_of(folder_.path() + "/checkpoints"), std::vector<std::string>{"step-00000001"});
    const auto newest = find_newest(folder_.path());
    ASSERT_TRUE(newest.has_value());
    replica_.spoil();
    load(replica_.ctx, *newest, replica_.parts());
    EXPECT_TRUE(replica_.holds(kOldSalt));
  }

  std::unique_ptr<comm::Communicator> world_;
  testing::SharedFolder folder_;
  comm::Topology topology_;
  Replica replica_;
};

TEST_P(FailedSave, OnARankWithAFullDisk) {
  const int failing = GetParam() % world_->size();
  std::string text;
  {
    std::optional<FileSizeLimit> limit;
    if (world_->rank() == failing) limit.emplace(1000);
    text = failing_save();
  }
  testing::expect_holds(text, {"cannot be written", "step-00000002.tmp", "File too large"});
  if (world_->size() > 1) testing::expect_holds(text, {str("rank ", failing, ":")});
  expect_same(text);
  world_->barrier();
  expect_old_one_whole();
  // With room again the same save goes through.
  replica_.fill(kNewSalt);
  EXPECT_EQ(failing_save(), "");
  replica_.spoil();
  load(replica_.ctx, find_newest(folder_.path()).value(), replica_.parts());
  EXPECT_TRUE(replica_.holds(kNewSalt));
}
INSTANTIATE_TEST_SUITE_P(Ranks, FailedSave, ::testing::Values(0, 1, 3));

class RefusedSave : public FailedSave {};

TEST_F(RefusedSave, WhereNoFolderCanBeMade) {
  // A file where the folder should be: root may write everywhere else.
  if (world_->rank() == 0) std::ofstream(folder_.path() + "/file") << "x";
  world_->barrier();
  const std::string run_dir = folder_.path() + "/file";
  const std::string text =
      testing::error_of([&] { save(replica_.ctx, run_dir, replica_.parts(), state_at(2), 2); });
  testing::expect_holds(text, {run_dir, "cannot be made"});
  expect_same(text);
  expect_old_one_whole();
}

class DamagedCheckpoint : public FailedSave {};

TEST_F(DamagedCheckpoint, IsRefusedOnEveryRankAndChangesNothing) {
  const std::string path = find_newest(folder_.path()).value();
  for (const std::string& name : files_of(path)) {
    const std::string bytes = read_bytes(path + "/" + name);
    world_->barrier();
    if (world_->rank() == 0) {
      std::string damaged = bytes;
      damaged[bytes.size() / 2] ^= 4;
      write_bytes(path + "/" + name, damaged);
    }
    world_->barrier();
    const std::string text = testing::error_of([&] { load(replica_.ctx, path, replica_.parts()); });
    testing::expect_holds(text, {path});
    if (name != "COMMITTED") testing::expect_holds(text, {name});
    expect_same(text);
    EXPECT_TRUE(replica_.holds(kNewSalt));
    world_->barrier();
    if (world_->rank() == 0) write_bytes(path + "/" + name, bytes);
    world_->barrier();
  }
  expect_old_one_whole();
}

}  // namespace
}  // namespace spillway::checkpoint
