#include "layout.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iomanip>
#include <sstream>

#include "files.h"
#include "spillway/core/error.h"

namespace spillway::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepBegin = "step-";
constexpr int kStepDigits = 8;
constexpr int kShardDigits = 5;

std::string padded(int64_t number, int digits) {
  std::ostringstream out;
  out << std::setw(digits) << std::setfill('0') << number;
  return out.str();
}

// Names in a folder; none when it does not exist.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    names.push_back(it->path().filename().string());
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    throw Error(str("checkpoint folder \"", folder, "\": ", code.message()));
  }
  return names;
}

}  // namespace

std::string checkpoints_folder(const std::string& run_dir) { return run_dir + "/checkpoints"; }

std::string step_name(int64_t step) { return str(kStepBegin, padded(step, kStepDigits)); }

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepBegin)) return std::nullopt;
  int64_t step = -1;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kStepBegin.size(), end, step);
  // Written back: "step-12" and "step-+12" are nobody's.
  if (error != std::errc() || rest != end || step < 0 || step_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::string shard_name(std::string_view kind, int64_t rank, int64_t world) {
  return str(kind, "-", padded(rank, kShardDigits), "-of-", padded(world, kShardDigits),
             ".safetensors");
}

std::vector<StepFolder> step_folders(const std::string& run_dir) {
  const std::string parent = checkpoints_folder(run_dir);
  std::vector<StepFolder> folders;
  for (const std::string& name : names_in(parent)) {
    const std::optional<int64_t> step = step_of(name);
    if (!step) continue;
    const std::string path = parent + "/" + name;
    folders.push_back({*step, path, exists(path + "/" + kCommittedFile)});
  }
  std::sort(folders.begin(), folders.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return folders;
}

void set_aside(const StepFolder& folder) {
  std::string target = folder.path + kSupersededEnd;
  for (int64_t i = 1; exists(target); ++i) target = str(folder.path, kSupersededEnd, ".", i);
  rename_path(folder.path, target);
}

void remove_leftovers(const std::string& run_dir) {
  const std::string parent = checkpoints_folder(run_dir);
  for (const std::string& name : names_in(parent)) {
    const std::string_view temporary = kTemporaryEnd;
    if (name.ends_with(temporary) &&
        step_of(std::string_view(name).substr(0, name.size() - temporary.size()))) {
      remove_path(parent + "/" + name);
    }
  }
  for (const StepFolder& folder : step_folders(run_dir)) {
    if (!folder.committed) remove_path(folder.path);
  }
}

void remove_oldest(const std::string& run_dir, int64_t keep) {
  std::vector<StepFolder> folders = step_folders(run_dir);
  std::erase_if(folders, [](const StepFolder& folder) { return !folder.committed; });
  const int64_t count = static_cast<int64_t>(folders.size());
  for (int64_t i = 0; i < count - keep; ++i) {
    const std::string& path = folders[static_cast<size_t>(i)].path;
    // Without COMMITTED a directory that is half removed is none.
    remove_path(path + "/" + kCommittedFile);
    sync_folder(path);
    remove_path(path);
  }
}

}  // namespace spillway::checkpoint
