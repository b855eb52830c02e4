// Reading: all is judged on all ranks before the first element is copied.

#include <algorithm>
#include <optional>

#include "agreement.h"
#include "manifest.h"
#include "optimizer_state.h"
#include "spillway/checkpoint/checkpoint.h"
#include "spillway/model/decoder.h"
#include "weight_source.h"

namespace spillway::checkpoint {
namespace {

/// Every byte of the checkpoint is read by one rank; the large files first, to each rank in turn.
void verify_share(const std::string& folder, const Manifest& manifest,
                  const comm::Communicator& world, int num_threads) {
  std::vector<const ManifestFile*> files;
  for (const ManifestFile& file : manifest.files) files.push_back(&file);
  std::stable_sort(files.begin(), files.end(), [](const ManifestFile* a, const ManifestFile* b) {
    return a->facts.bytes > b->facts.bytes;
  });
  for (size_t i = static_cast<size_t>(world.rank()); i < files.size();
       i += static_cast<size_t>(world.size())) {
    verify_file(folder, *files[i], num_threads);
  }
}

Files open_optimizer_files(const std::string& folder, const Manifest& manifest) {
  Files files;
  for (const ManifestFile& file : manifest.files) {
    if (!file.name.starts_with("optimizer-")) continue;
    files.push_back(std::make_unique<SafetensorsFile>(folder + "/" + file.name));
  }
  return files;
}

}  // namespace

void load(Context& ctx, const std::string& checkpoint_dir, const Parts& parts) {
  comm::Communicator& world = parts.topology.world();
  std::optional<Manifest> manifest;
  on_every_rank(world, [&] {
    manifest = read_manifest(checkpoint_dir);
    verify_share(checkpoint_dir, *manifest, world, ctx.num_threads());
  });
  Files weight_files, optimizer_files;
  std::optional<WeightSource> weights;
  std::optional<OptimizerSource> optimizer;
  on_every_rank(world, [&] {
    const DType dtype =
        parts.store.all().empty() ? DType::kF32 : parts.store.all().front().spec.dtype;
    weight_files = open_weight_files(checkpoint_dir);
    weights.emplace(checkpoint_dir, weight_files, parts.config, parts.buffers, dtype);
    optimizer_files = open_optimizer_files(checkpoint_dir, *manifest);
    optimizer.emplace(checkpoint_dir, optimizer_files, model::parameter_specs(parts.config, dtype));
  });
  on_every_rank(world, [&] {
    weights->fill(ctx, {.ep = parts.topology.ep(), .ep_rank = parts.topology.ep_rank()},
                  parts.store, parts.buffers);
    optimizer->fill(ctx, parts);
  });
}

}  // namespace spillway::checkpoint
