#pragma once
// A run's state on disk: one directory a step, complete or not there. See src/checkpoint/layout.h
// for the files. Weights alone: load_weights.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/capacity/controller.h"
#include "spillway/checkpoint/load_weights.h"
#include "spillway/checkpoint/safetensors.h"
#include "spillway/comm/topology.h"
#include "spillway/model/config.h"
#include "spillway/nn/parameter.h"
#include "spillway/optim/adamw.h"

namespace spillway::checkpoint {

/// What a checkpoint keeps beside tensors.
struct RunState {
  int64_t step = 0;             ///< optimizer steps done; also the cursor of the data
  int64_t updates = 0;          ///< updates of the optimizer; skipped steps make none
  int64_t epoch = 0;            ///< of the EP session; a resumed run begins with the next
  bool evaluation_due = false;  ///< an evaluation after `step` was cut short
  std::optional<capacity::ControllerState> controller;  ///< absent for a dense model
  /// The resolved config, JSON. Comes back with the same keys and values in the same order, laid
  /// out as config::to_json_text does; empty stays empty.
  std::string config_json;
  int64_t world = 1;  ///< `save` takes this one and `ep` from the topology
  int64_t ep = 1;
  int64_t threads = 1;
  std::string version;  ///< of the source
};

/// The tensors of a run. `buffers` are f32, equal on every rank, and belong to no optimizer.
struct Parts {
  comm::Topology& topology;
  const model::DecoderConfig& config;
  nn::ParameterStore& store;
  optim::AdamW& optimizer;
  std::vector<NamedTensor> buffers;
};

struct SaveResult {
  std::string path;
  int64_t bytes = 0;  ///< of all files of all ranks
  double milliseconds = 0.0;
};

/// Collective of the world. Writes RUN_DIR/checkpoints/step-NNNNNNNN; when it returns, the
/// checkpoint is on the disk and committed, and only the newest `keep` committed ones are left.
/// What killed writers left is removed. A checkpoint of the same step is replaced at once. When a
/// rank cannot write, every rank throws the same Error, naming rank, file and cause, and the older
/// checkpoints are as they were.
SaveResult save(Context& ctx, const std::string& run_dir, const Parts& parts, const RunState& state,
                int64_t keep);

/// The state of a committed checkpoint; reads its manifest only. DataError naming the file when it
/// is missing, damaged or of another version.
RunState read_state(const std::string& checkpoint_dir);

/// Collective of the world. Fills values, masters, moments and buffers from a checkpoint of the
/// same model, whatever its world, ep and zero were. Every file's size and checksum is verified, by
/// one of the ranks, and every tensor's name, dtype and shape before the first element is copied:
/// on a DataError, the same on every rank, nothing has changed.
void load(Context& ctx, const std::string& checkpoint_dir, const Parts& parts);

/// The committed checkpoint of the highest step of a run directory.
std::optional<std::string> find_newest(const std::string& run_dir);

/// Renames the committed checkpoints of later steps to NAME.superseded (NAME.superseded.1, ... when
/// that exists), so that a run resumed at `step` can write its own. One rank calls it.
void set_aside_after(const std::string& run_dir, int64_t step);

}  // namespace spillway::checkpoint
