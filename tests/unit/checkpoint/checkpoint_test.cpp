#include "spillway/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "spillway/config/json.h"
#include "support/checkpoint_fixture.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

namespace fs = std::filesystem;
using spillway::testing::TempFiles;
using spillway::testing::throws_with;

using Names = std::vector<std::string>;

class Checkpoint : public ::testing::Test {
 protected:
  std::string run_dir() const { return files_.folder().string(); }
  std::string parent() const { return run_dir() + "/checkpoints"; }
  SaveResult save_at(int64_t step, int64_t keep = 2) {
    single_.replica.fill(static_cast<int>(step));
    return save(single_.replica.ctx, run_dir(), single_.replica.parts(), state_at(step), keep);
  }
  /// The newest one loads and is of this step.
  void expect_newest(int64_t step) {
    const std::optional<std::string> path = find_newest(run_dir());
    ASSERT_TRUE(path.has_value());
    EXPECT_EQ(read_state(*path).step, step);
    single_.replica.spoil();
    load(single_.replica.ctx, *path, single_.replica.parts());
    EXPECT_TRUE(single_.replica.holds(static_cast<int>(step)));
  }

  TempFiles files_;
  Single single_{deepseek_case(), DType::kBF16};
};

RunState full_state() {
  RunState state = state_at(1234567);
  state.updates = 1234000;
  state.epoch = 56;
  state.evaluation_due = true;
  state.threads = 3;
  state.version = "abc-\"dirty\"";
  state.config_json = config::to_json_text(config::Config{});
  const double nan = std::bit_cast<double>(uint64_t{0x7ff8000000000123});
  state.controller = capacity::ControllerState{
      .policy = "peak",
      .observed_steps = 77,
      .worst_case_slots = {4096, 8192},
      .balanced_slots = {512, 1024},
      .start_capacities = {1024, std::numeric_limits<int64_t>::max()},
      .capacities = {2048, 1},
      .demands = {{1, 2, 3}, {}},
      .policy_states = {{0.1, -0.0, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, 3.0},
                        {nan, std::numeric_limits<double>::infinity(), -INFINITY}}};
  return state;
}

std::vector<std::vector<uint64_t>> bits(const std::vector<std::vector<double>>& values) {
  std::vector<std::vector<uint64_t>> all;
  for (const std::vector<double>& row : values) {
    all.emplace_back();
    for (const double x : row) all.back().push_back(std::bit_cast<uint64_t>(x));
  }
  return all;
}

TEST_F(Checkpoint, StateComesBackToTheBit) {
  const RunState saved = full_state();
  const SaveResult result = save(single_.replica.ctx, run_dir(), single_.replica.parts(), saved, 2);
  EXPECT_EQ(fs::path(result.path).filename(), "step-01234567");
  EXPECT_GT(result.milliseconds, 0.0);
  const RunState state = read_state(result.path);
  EXPECT_EQ(state.step, saved.step);
  EXPECT_EQ(state.updates, saved.updates);
  EXPECT_EQ(state.epoch, saved.epoch);
  EXPECT_EQ(state.evaluation_due, saved.evaluation_due);
  EXPECT_EQ(state.version, saved.version);
  EXPECT_EQ(state.threads, saved.threads);
  EXPECT_EQ(state.world, 1);
  EXPECT_EQ(state.ep, 1);
  EXPECT_EQ(state.config_json, saved.config_json);
  ASSERT_TRUE(state.controller.has_value());
  EXPECT_EQ(state.controller->policy, saved.controller->policy);
  EXPECT_EQ(state.controller->observed_steps, saved.controller->observed_steps);
  EXPECT_EQ(state.controller->worst_case_slots, saved.controller->worst_case_slots);
  EXPECT_EQ(state.controller->balanced_slots, saved.controller->balanced_slots);
  EXPECT_EQ(state.controller->start_capacities, saved.controller->start_capacities);
  EXPECT_EQ(state.controller->capacities, saved.controller->capacities);
  EXPECT_EQ(state.controller->demands, saved.controller->demands);
  EXPECT_EQ(bits(state.controller->policy_states), bits(saved.controller->policy_states));
}

TEST_F(Checkpoint, StateOfADenseModelHasNoController) {
  const RunState state = read_state(save_at(5).path);
  EXPECT_FALSE(state.controller.has_value());
  EXPECT_FALSE(state.evaluation_due);
  EXPECT_EQ(state.config_json, "");
}

TEST_F(Checkpoint, RefusesAConfigThatIsNoJson) {
  RunState state = state_at(1);
  state.config_json = "{";
  EXPECT_TRUE(throws_with<Error>(
      [&] { save(single_.replica.ctx, run_dir(), single_.replica.parts(), state, 2); },
      {"config_json"}));
  EXPECT_EQ(files_of(parent()), Names{});
}

TEST_F(Checkpoint, FilesOfACheckpoint) {
  EXPECT_EQ(files_of(save_at(3).path),
            (Names{"COMMITTED", "config.json", "manifest.json", "model-00000-of-00001.safetensors",
                   "model.safetensors.index.json", "optimizer-00000-of-00001.safetensors"}));
}

TEST_F(Checkpoint, AF32ModelKeepsNoMastersBesideItsValues) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Single single(qwen_case(), dtype);
    const SaveResult result = save(single.replica.ctx, files_.path(std::string(dtype_name(dtype))),
                                   single.replica.parts(), state_at(1), 1);
    const SafetensorsFile file(result.path + "/optimizer-00000-of-00001.safetensors");
    const size_t fields = dtype == DType::kF32 ? 2 : 3;
    EXPECT_EQ(file.entries().size(), fields * single.replica.store.all().size());
  }
}

TEST_F(Checkpoint, NewestOfNone) {
  EXPECT_EQ(find_newest(run_dir()), std::nullopt);
  EXPECT_EQ(find_newest(run_dir() + "/nowhere"), std::nullopt);
}

TEST_F(Checkpoint, KeepsTheNewest) {
  for (const int64_t step : {2, 10, 9, 100}) save_at(step, 2);
  EXPECT_EQ(files_of(parent()), (Names{"step-00000010", "step-00000100"}));
  expect_newest(100);
  save_at(101, 1);
  EXPECT_EQ(files_of(parent()), Names{"step-00000101"});
  EXPECT_TRUE(throws_with<Error>([&] { save_at(102, 0); }, {"checkpoint.keep", "0"}));
}

TEST_F(Checkpoint, TheSameStepIsReplaced) {
  save_at(4);
  single_.replica.fill(99);
  RunState state = state_at(4);
  state.evaluation_due = true;
  save(single_.replica.ctx, run_dir(), single_.replica.parts(), state, 2);
  EXPECT_EQ(files_of(parent()), Names{"step-00000004"});
  EXPECT_TRUE(read_state(parent() + "/step-00000004").evaluation_due);
  single_.replica.spoil();
  load(single_.replica.ctx, parent() + "/step-00000004", single_.replica.parts());
  EXPECT_TRUE(single_.replica.holds(99));
}

// Every state that a writer can be killed in, as a directory: the older checkpoint is the newest,
// nothing is removed by looking, and the next save cleans up.
struct Interrupted {
  std::string name;
  bool renamed;    // the directory has its own name already
  Names left;      // the files that are there; empty: none
  size_t cut = 0;  // bytes that the last of them has
};
void PrintTo(const Interrupted& c, std::ostream* out) { *out << c.name; }
class InterruptedSave : public Checkpoint, public ::testing::WithParamInterface<Interrupted> {};

TEST_P(InterruptedSave, LeavesTheOlderOneAlone) {
  save_at(1, 3);
  const std::string whole = save_at(2, 3).path;
  const std::string left =
      whole.substr(0, whole.size() - 1) + "7" + (GetParam().renamed ? "" : ".tmp");
  fs::rename(whole, left);
  for (const std::string& name : files_of(left)) {
    const Names& names = GetParam().left;
    if (std::find(names.begin(), names.end(), name) == names.end()) fs::remove(left + "/" + name);
  }
  if (GetParam().cut > 0) fs::resize_file(left + "/" + GetParam().left.back(), GetParam().cut);
  if (GetParam().renamed) write_bytes(left + "/COMMITTED.tmp", "manif");
  const Names before = files_of(left);
  expect_newest(1);
  set_aside_after(run_dir(), 1);
  EXPECT_EQ(files_of(left), before);
  if (GetParam().renamed) {
    EXPECT_TRUE(throws_with<DataError>([&] { read_state(left); }, {"COMMITTED", "missing"}));
  }
  save_at(3, 3);
  EXPECT_EQ(files_of(parent()), (Names{"step-00000001", "step-00000003"}));
  expect_newest(3);
}
INSTANTIATE_TEST_SUITE_P(
    Moments, InterruptedSave,
    ::testing::Values(
        Interrupted{"NothingWritten", false, {}},
        Interrupted{"FirstFileCutShort", false, {"model-00000-of-00001.safetensors"}, 100},
        Interrupted{"NoOptimizer", false, {"model-00000-of-00001.safetensors"}},
        Interrupted{"NoManifest",
                    false,
                    {"config.json", "model-00000-of-00001.safetensors",
                     "optimizer-00000-of-00001.safetensors"}},
        Interrupted{
            "ManifestCutShort",
            false,
            {"config.json", "model-00000-of-00001.safetensors", "model.safetensors.index.json",
             "optimizer-00000-of-00001.safetensors", "manifest.json"},
            50},
        Interrupted{
            "NotRenamed",
            false,
            {"config.json", "model-00000-of-00001.safetensors", "model.safetensors.index.json",
             "optimizer-00000-of-00001.safetensors", "manifest.json"}},
        Interrupted{
            "CommittedButNotExchanged",
            false,
            {"config.json", "model-00000-of-00001.safetensors", "model.safetensors.index.json",
             "optimizer-00000-of-00001.safetensors", "manifest.json", "COMMITTED"}},
        Interrupted{
            "NotCommitted",
            true,
            {"config.json", "model-00000-of-00001.safetensors", "model.safetensors.index.json",
             "optimizer-00000-of-00001.safetensors", "manifest.json"}},
        Interrupted{"HalfRemoved", true, {"model-00000-of-00001.safetensors"}}),
    [](const auto& c) { return c.param.name; });

TEST_F(Checkpoint, OtherNamesAreNobodysBusiness) {
  for (const char* const name :
       {"step-12", "step-000000x1", "best", "step-00000009.superseded", "notes.tmp"}) {
    fs::create_directories(parent() + "/" + name);
    write_bytes(parent() + "/" + name + "/COMMITTED", "x");
  }
  EXPECT_EQ(find_newest(run_dir()), std::nullopt);
  save_at(1, 1);
  EXPECT_EQ(files_of(parent()).size(), 6u);
  expect_newest(1);
}

TEST_F(Checkpoint, SetsAsideWhatIsLater) {
  for (const int64_t step : {1, 2, 3}) save_at(step, 5);
  set_aside_after(run_dir(), 1);
  EXPECT_EQ(files_of(parent()),
            (Names{"step-00000001", "step-00000002.superseded", "step-00000003.superseded"}));
  expect_newest(1);
  save_at(2, 5);
  set_aside_after(run_dir(), 1);
  save_at(2, 5);
  set_aside_after(run_dir(), 0);
  EXPECT_EQ(files_of(parent()), (Names{"step-00000001.superseded", "step-00000002.superseded",
                                       "step-00000002.superseded.1", "step-00000002.superseded.2",
                                       "step-00000003.superseded"}));
  EXPECT_EQ(find_newest(run_dir()), std::nullopt);
  set_aside_after(run_dir(), 0);
  // They are still whole.
  EXPECT_EQ(read_state(parent() + "/step-00000003.superseded").step, 3);
}

// Every file of a checkpoint, damaged in every way.
struct FileDamage {
  std::string name;
  std::string file;
  std::function<void(const std::string& path)> damage;
};
void PrintTo(const FileDamage& c, std::ostream* out) { *out << c.name; }

std::vector<FileDamage> file_damages() {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"Manifest", "manifest.json"},
      {"Committed", "COMMITTED"},
      {"Config", "config.json"},
      {"Index", "model.safetensors.index.json"},
      {"Model", "model-00000-of-00001.safetensors"},
      {"Optimizer", "optimizer-00000-of-00001.safetensors"}};
  std::vector<FileDamage> damages;
  for (const auto& [title, file] : files) {
    const auto flip = [](size_t numerator) {
      return [numerator](const std::string& path) {
        std::string bytes = read_bytes(path);
        bytes[(bytes.size() - 1) * numerator / 4] ^= 0x20;
        write_bytes(path, bytes);
      };
    };
    damages.push_back({title + "FirstByte", file, flip(0)});
    damages.push_back({title + "MiddleByte", file, flip(2)});
    damages.push_back({title + "LastByte", file, flip(4)});
    damages.push_back({title + "Missing", file, [](const std::string& path) { fs::remove(path); }});
    damages.push_back({title + "Empty", file, [](const std::string& p) { fs::resize_file(p, 0); }});
    damages.push_back({title + "CutByOne", file, [](const std::string& path) {
                         fs::resize_file(path, fs::file_size(path) - 1);
                       }});
    damages.push_back({title + "GrownByOne", file, [](const std::string& path) {
                         fs::resize_file(path, fs::file_size(path) + 1);
                       }});
  }
  return damages;
}
class DamagedFile : public Checkpoint, public ::testing::WithParamInterface<FileDamage> {
 protected:
  /// A copy of one checkpoint: saving waits for the disk.
  std::string copy_of_a_checkpoint() {
    static const TempFiles original;
    const std::string path = original.path("checkpoints/step-00000001");
    if (!fs::exists(path)) {
      single_.replica.fill(1);
      save(single_.replica.ctx, original.folder().string(), single_.replica.parts(), state_at(1),
           1);
    }
    fs::copy(path, files_.path("copy"));
    return files_.path("copy");
  }
};

TEST_P(DamagedFile, IsNamedAndChangesNothing) {
  const std::string path = copy_of_a_checkpoint();
  single_.replica.fill(42);
  GetParam().damage(path + "/" + GetParam().file);
  EXPECT_TRUE(
      throws_with<DataError>([&] { load(single_.replica.ctx, path, single_.replica.parts()); },
                             {path + "/" + GetParam().file}));
  EXPECT_TRUE(single_.replica.holds(42));
  // Weights alone: refused too, unless it is the optimizer's file or what transformers reads.
  const bool unread = GetParam().file.starts_with("optimizer") || GetParam().file == "config.json";
  const auto load_alone = [&] {
    load_weights(single_.replica.ctx, path, deepseek_case().config, {}, single_.replica.store,
                 single_.replica.buffers);
  };
  if (unread) {
    load_alone();
    EXPECT_TRUE(single_.replica.holds(1, false));
  } else {
    EXPECT_TRUE(throws_with<DataError>(load_alone, {path + "/" + GetParam().file}));
  }
}
INSTANTIATE_TEST_SUITE_P(Files, DamagedFile, ::testing::ValuesIn(file_damages()),
                         [](const auto& c) { return c.param.name; });

TEST_F(Checkpoint, EveryFlippedByteOfTheSmallFilesIsSeen) {
  const std::string path = save_at(1).path;
  for (const char* const name : {"manifest.json", "COMMITTED"}) {
    const std::string bytes = read_bytes(path + "/" + name);
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] ^= static_cast<char>(1 << (i % 8));
      write_bytes(path + "/" + name, damaged);
      ASSERT_TRUE(throws_with<DataError>([&] { read_state(path); }, {path})) << name << " " << i;
    }
    write_bytes(path + "/" + name, bytes);
  }
  expect_newest(1);
}

TEST_F(Checkpoint, AFolderThatIsNoCheckpoint) {
  EXPECT_TRUE(throws_with<DataError>([&] { read_state(run_dir() + "/none"); }, {"none"}));
  EXPECT_TRUE(throws_with<DataError>([&] { read_state(run_dir()); }, {"COMMITTED", "missing"}));
}

}  // namespace
}  // namespace spillway::checkpoint
