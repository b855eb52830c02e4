#include "spillway/checkpoint/checkpoint.h"

#include "files.h"
#include "layout.h"
#include "manifest.h"

namespace spillway::checkpoint {

RunState read_state(const std::string& checkpoint_dir) {
  return read_manifest(checkpoint_dir).state;
}

std::optional<std::string> find_newest(const std::string& run_dir) {
  std::optional<std::string> newest;
  for (const StepFolder& folder : step_folders(run_dir)) {
    if (folder.committed) newest = folder.path;
  }
  return newest;
}

void set_aside_after(const std::string& run_dir, int64_t step) {
  bool changed = false;
  for (const StepFolder& folder : step_folders(run_dir)) {
    if (!folder.committed || folder.step <= step) continue;
    set_aside(folder);
    changed = true;
  }
  if (changed) sync_folder(checkpoints_folder(run_dir));
}

}  // namespace spillway::checkpoint
