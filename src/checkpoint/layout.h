#pragma once
// A checkpoint on disk:
//
//   RUN_DIR/checkpoints/step-00000120/
//     model-00000-of-00004.safetensors ...      weights, in the model's dtype, and buffers, f32;
//     every
//                                               tensor once, spread over the ranks by size
//     model.safetensors.index.json, config.json what transformers opens the folder by
//     optimizer-00000-of-00004.safetensors ...  moments and masters: optimizer_state.h
//     manifest.json                             state of the run; size and checksum of the others
//     COMMITTED                                 "manifest.json CHECKSUM\n": written last
//
// A directory without COMMITTED is no checkpoint. While it is written it is called
// step-00000120.tmp; one that a resumed run has left behind is step-00000120.superseded.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kCommittedFile = "COMMITTED";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kTemporaryEnd = ".tmp";
inline constexpr const char* kSupersededEnd = ".superseded";
/// The longest text file that is read: an index of some million tensors.
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

/// RUN_DIR/checkpoints
std::string checkpoints_folder(const std::string& run_dir);
/// "step-00000120"
std::string step_name(int64_t step);
/// The step of such a name; nothing for any other.
std::optional<int64_t> step_of(std::string_view name);
/// "model-00001-of-00004.safetensors"
std::string shard_name(std::string_view kind, int64_t rank, int64_t world);

struct StepFolder {
  int64_t step = 0;
  std::string path;
  bool committed = false;
};
/// All step-NNNNNNNN of a run directory, by step; none when it has no checkpoints.
std::vector<StepFolder> step_folders(const std::string& run_dir);

/// Renames a checkpoint so that it counts no more: NAME.superseded, or NAME.superseded.N.
void set_aside(const StepFolder& folder);
/// Removes what killed writers left: temporary and uncommitted directories.
void remove_leftovers(const std::string& run_dir);
/// Removes the oldest committed ones but `keep`; each loses COMMITTED first.
void remove_oldest(const std::string& run_dir, int64_t keep);

}  // namespace spillway::checkpoint
