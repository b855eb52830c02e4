// Writing: every rank its tensors, rank 0 the rest and the commit.

#include <chrono>
#include <numeric>

#include "agreement.h"
#include "files.h"
#include "json.h"
#include "layout.h"
#include "manifest.h"
#include "optimizer_state.h"
#include "shard_plan.h"
#include "spillway/checkpoint/checkpoint.h"
#include "spillway/checkpoint/tensor_names.h"
#include "spillway/core/log.h"
#include "transformers_config.h"

namespace spillway::checkpoint {
namespace {

constexpr const char* kModelKind = "model";
constexpr const char* kOptimizerKind = "optimizer";

/// Which tensor of weights goes into which rank's file.
struct WeightPlan {
  std::vector<FileTensor> tensors;  // buffers at the end
  std::vector<int64_t> ranks;
};

WeightPlan plan_weights(const Parts& parts) {
  WeightPlan plan{file_tensors(parts.config, family_of(parts.config)), {}};
  for (const NamedTensor& buffer : parts.buffers) {
    plan.tensors.push_back(
        {.name = buffer.name, .parameter = buffer.name, .shape = buffer.values.shape()});
  }
  plan.ranks = assign_ranks(plan.tensors, parts.config.moe.experts, parts.topology.world().size(),
                            parts.topology.ep());
  return plan;
}

std::vector<NamedTensor> weights_of_rank(const Parts& parts, const WeightPlan& plan) {
  const size_t num_parameters = plan.tensors.size() - parts.buffers.size();
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const FileTensor& tensor = plan.tensors[i];
    if (plan.ranks[i] != parts.topology.world().rank()) continue;
    if (i >= num_parameters) {
      tensors.push_back(parts.buffers[i - num_parameters]);
      continue;
    }
    const Tensor& value = parts.store.at(tensor.parameter).value;
    const int64_t first = tensor.expert < 0 ? 0 : parts.topology.ep_rank() * value.numel();
    tensors.push_back({tensor.name, value.slice(tensor.begin - first, tensor.shape)});
  }
  return tensors;
}

DType weights_dtype(const Parts& parts) {
  return parts.store.all().empty() ? DType::kF32 : parts.store.all().front().spec.dtype;
}

std::string index_text(const Parts& parts, const WeightPlan& plan) {
  const size_t num_parameters = plan.tensors.size() - parts.buffers.size();
  const int64_t world = parts.topology.world().size();
  Json json;
  int64_t bytes = 0;
  Json& files = json["weight_map"] = Json::object();
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    files[plan.tensors[i].name] = shard_name(kModelKind, plan.ranks[i], world);
    const DType dtype = i < num_parameters ? weights_dtype(parts) : DType::kF32;
    bytes += plan.tensors[i].shape.numel() * dtype_bytes(dtype);
  }
  json["metadata"]["total_size"] = bytes;
  return json.dump(2) + "\n";
}

struct RankFiles {
  FileFacts model, optimizer;
};

RankFiles write_rank(const Parts& parts, const WeightPlan& plan, const std::string& folder) {
  const int64_t rank = parts.topology.world().rank(), world = parts.topology.world().size();
  const auto path = [&](const char* kind) { return folder + "/" + shard_name(kind, rank, world); };
  RankFiles files;
  files.model = write_safetensors(path(kModelKind), weights_of_rank(parts, plan),
                                  {{"format", "pt"}});  // transformers asks for it
  files.optimizer = write_safetensors(path(kOptimizerKind), optimizer_tensors(parts));
  return files;
}

/// All files but the manifest, in its order.
std::vector<ManifestFile> list_files(const std::vector<RankFiles>& ranks, const FileFacts& config,
                                     const FileFacts& index) {
  const int64_t world = static_cast<int64_t>(ranks.size());
  std::vector<ManifestFile> files{{kConfigFile, config}, {kIndexFile, index}};
  for (int64_t rank = 0; rank < world; ++rank) {
    const RankFiles& written = ranks[static_cast<size_t>(rank)];
    files.push_back({shard_name(kModelKind, rank, world), written.model});
    files.push_back({shard_name(kOptimizerKind, rank, world), written.optimizer});
  }
  return files;
}

/// COMMITTED appears whole or not at all.
void write_committed(const std::string& folder, const FileFacts& manifest) {
  const std::string path = folder + "/" + kCommittedFile;
  write_text(path + kTemporaryEnd, committed_text(manifest));
  rename_path(path + kTemporaryEnd, path);
  sync_folder(folder);
}

/// A checkpoint of the same step is there: the new one is committed first and takes its place at
/// once, so at no moment is there none.
void replace_folder(const std::string& parent, const std::string& temporary,
                    const std::string& target, const FileFacts& manifest) {
  write_committed(temporary, manifest);
  if (!exchange_paths(temporary, target)) {
    set_aside({.path = target});
    rename_path(temporary, target);
  }
  sync_folder(parent);  // the old one, now under the temporary name, is a leftover
}

void commit_folder(const std::string& parent, const std::string& temporary,
                   const std::string& target, const FileFacts& manifest) {
  sync_folder(temporary);
  if (exists(target)) return replace_folder(parent, temporary, target, manifest);
  rename_path(temporary, target);
  sync_folder(parent);
  write_committed(target, manifest);
}

/// Rank 0's part after all ranks have written. Returns the bytes of all files.
int64_t finish(const Parts& parts, const WeightPlan& plan, const RunState& state,
               const std::vector<RankFiles>& ranks, const std::string& parent,
               const std::string& name) {
  const std::string temporary = parent + "/" + name + kTemporaryEnd;
  const FileFacts config = write_text(temporary + "/" + kConfigFile,
                                      transformers_config_text(parts.config, weights_dtype(parts)));
  const FileFacts index = write_text(temporary + "/" + kIndexFile, index_text(parts, plan));
  Manifest manifest{state, list_files(ranks, config, index)};
  manifest.state.world = parts.topology.world().size();
  manifest.state.ep = parts.topology.ep();
  const FileFacts written = write_text(temporary + "/" + kManifestFile, manifest_text(manifest));
  commit_folder(parent, temporary, parent + "/" + name, written);
  int64_t bytes = written.bytes;
  for (const ManifestFile& file : manifest.files) bytes += file.facts.bytes;
  return bytes;
}

/// What is left over costs room and nothing else: the next save tries again.
void try_to(const std::function<void()>& remove) noexcept {
  try {
    remove();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

}  // namespace

SaveResult save(Context&, const std::string& run_dir, const Parts& parts, const RunState& state,
                int64_t keep) {
  const auto start = std::chrono::steady_clock::now();
  SPILLWAY_CHECK(keep >= 1, "checkpoint.keep is ", keep, "; allowed: at least 1");
  comm::Communicator& world = parts.topology.world();
  const bool root = world.rank() == 0;
  const std::string parent = checkpoints_folder(run_dir), name = step_name(state.step);
  const std::string temporary = parent + "/" + name + kTemporaryEnd;
  SaveResult result{.path = parent + "/" + name};
  on_every_rank(world, [&] {
    if (!root) return;
    make_folder(parent);
    sync_folder(run_dir);
    remove_leftovers(run_dir);
    make_folder(temporary);
  });
  try {
    const WeightPlan plan = plan_weights(parts);
    RankFiles mine;
    on_every_rank(world, [&] { mine = write_rank(parts, plan, temporary); });
    std::vector<RankFiles> ranks(static_cast<size_t>(world.size()));
    world.all_gather(&mine, ranks.data(), sizeof mine);
    on_every_rank(world, [&] {
      if (root) result.bytes = finish(parts, plan, state, ranks, parent, name);
    });
  } catch (...) {
    if (root) try_to([&] { remove_leftovers(run_dir); });
    throw;
  }
  if (root) {
    try_to([&] {
      remove_leftovers(run_dir);
      remove_oldest(run_dir, keep);
    });
  }
  std::vector<int64_t> bytes(static_cast<size_t>(world.size()));
  world.all_gather(&result.bytes, bytes.data(), sizeof(int64_t));
  result.bytes = bytes.front();
  result.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace spillway::checkpoint
