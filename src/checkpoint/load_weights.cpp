#include "spillway/checkpoint/load_weights.h"

#include <filesystem>

#include "files.h"
#include "layout.h"
#include "manifest.h"
#include "weight_source.h"

namespace spillway::checkpoint {
namespace {

Files open_files(const std::string& path, int num_threads) {
  if (!std::filesystem::is_directory(path)) {
    Files files;
    files.push_back(std::make_unique<SafetensorsFile>(path));
    return files;
  }
  // One of our own directories says what its files must be.
  const bool ours = exists(path + "/" + kManifestFile) || exists(path + "/" + kCommittedFile) ||
                    step_of(std::filesystem::path(path).filename().string());
  if (ours) {
    for (const ManifestFile& file : read_manifest(path).files) {
      if (file.name.starts_with("model")) verify_file(path, file, num_threads);
    }
  }
  return open_weight_files(path);
}

}  // namespace

void load_weights(Context& ctx, const std::string& path, const model::DecoderConfig& config,
                  ExpertSlice slice, nn::ParameterStore& store,
                  const std::vector<NamedTensor>& buffers) {
  const Files files = open_files(path, ctx.num_threads());
  const WeightSource source(path, files, config, buffers, std::nullopt);
  source.fill(ctx, slice, store, buffers);
}

}  // namespace spillway::checkpoint
