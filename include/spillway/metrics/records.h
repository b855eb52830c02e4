#pragma once
// What a run reports, as plain structs; a member is written under its own name. Units and meanings
// are those of the EP contract: slots, assignments and tokens are different things. An optional
// without a value is written as null: "not known at this resolution", never 0.
// Shapes: R = world, D = dp, E = experts. Arrays by rank are in world order, dp major.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spillway::metrics {

/// The double that is written with the digits of the shortest decimal form of `value`: 0.1f gives
/// 0.1 and not 0.10000000149011612. Reading those digits back as a float gives `value` again. NaN
/// and infinities stay what they are.
double shortest(float value);

/// `type: "run"`: once at the start, and once more at every resume.
struct RunRecord {
  std::string config_json;              ///< the resolved config, a JSON object; written as `config`
  std::string git_commit;               ///< of the source that was built
  int64_t world = 1;                    ///< ranks
  int64_t ep = 1;                       ///< ranks of an EP group
  int64_t dp = 1;                       ///< EP groups
  std::string device;                   ///< "cpu" or "cuda"
  int64_t threads = 1;                  ///< OpenMP threads a rank
  int64_t parameters_total = 0;         ///< written as `parameters.total`
  int64_t parameters_active = 0;        ///< used by one token; written as `parameters.active`
  std::optional<int64_t> resumed_from;  ///< step of the checkpoint; null for a fresh start
};

/// Bytes of one rank by what they are for (runtime/allocator.h); `receive`: every tensor with a row
/// for each slot of capacity.
struct MemoryByPurpose {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t receive = 0;
  int64_t workspace = 0;
  int64_t data = 0;

  friend bool operator==(const MemoryByPurpose&, const MemoryByPurpose&) = default;
};

/// Bytes of one rank that recompute regions hold by name; a name that is not in `recompute.save`
/// holds nothing, and without regions none does: what backward reads is then kept by the ops.
struct SavedBytes {
  int64_t routing = 0;  ///< choice, gates, header of the handle: whatever `recompute.save` says
  int64_t dispatch = 0;
  int64_t router = 0;
  int64_t expert_up = 0;
  int64_t expert_act = 0;
  int64_t attention = 0;

  friend bool operator==(const SavedBytes&, const SavedBytes&) = default;
};

/// `type: "step"`: one optimizer step.
struct StepRecord {
  int64_t step = 0;            ///< 1-based
  double loss = 0;             ///< mean over all tokens of the global batch, without aux terms
  double aux_loss = 0;         ///< mean over MoE layers, without coefficient
  double z_loss = 0;           ///< mean over MoE layers, without coefficient
  double grad_norm = 0;        ///< before clipping
  double lr = 0;               ///< used in this step
  int64_t tokens = 0;          ///< of the global batch
  double step_ms = 0;          ///< wall time
  double tokens_per_s = 0;     ///< of the whole world
  double tflops = 0;           ///< model TFLOP/s a rank: active parameters, causal attention
  std::optional<double> mfu;   ///< share of the device's peak; null on CPU
  int64_t mem_peak_bytes = 0;  ///< highest of all ranks
  /// Peak of each purpose, the highest of all ranks; they need not have been at one time.
  MemoryByPurpose mem_peak_by_purpose;
  SavedBytes saved_bytes;  ///< peak of each name, the highest of all ranks
  bool skipped = false;    ///< no rank updated its weights
};

/// `type: "ep"`: one MoE layer in one micro-batch of one step.
struct EpRecord {
  int64_t step = 0;
  int64_t micro_batch = 0;
  int64_t layer = 0;                                        ///< decoder index
  int64_t epoch = 0;                                        ///< of the EP session
  int64_t capacity = 0;                                     ///< slots a rank when the step began
  std::vector<int64_t> capacity_end;                        ///< [D] slots a rank after `grow`
  std::vector<double> grow_alloc_ms;                        ///< [D] for `grow` lines, not in this
  std::vector<int64_t> total_recv_tokens;                   ///< [R] demand in slots
  std::optional<std::vector<int64_t>> recv_assignments;     ///< [R] before drops
  std::optional<std::vector<int64_t>> slot_counts_sum;      ///< [R] after drops
  std::optional<std::vector<int64_t>> dropped_assignments;  ///< [R] by receiving rank
  std::optional<std::vector<std::vector<int64_t>>> dropped_by_expert;  ///< [D][E] assignments
  std::optional<std::vector<int64_t>> dropped_by_source;               ///< [R] assignments
  std::optional<std::vector<int64_t>> fully_dropped_tokens;            ///< [R] by source rank
  std::optional<std::vector<int64_t>> padding_slots;                   ///< [R]
  std::optional<std::vector<std::vector<int64_t>>> expert_tokens;      ///< [D][E] before drops
  std::optional<double> gate_mass;          ///< sum of the gates given to dispatch
  std::optional<double> dropped_gate_mass;  ///< the part of it that was dropped
  int64_t balanced_slots = 0;               ///< for this line's own number of tokens
  int64_t worst_case_slots = 0;             ///< for this line's own number of tokens
  double max_over_balanced = 0;             ///< highest demand of a rank / balanced_slots
  double headroom = 0;                      ///< 1 - highest demand / capacity; below 0 on overflow
  int64_t recv_buffer_bytes = 0;            ///< receive buffer a rank
  int64_t capacity_sized_bytes = 0;         ///< all tensors with `capacity` rows, a rank
};

/// `type: "ep_step"`: one MoE layer over a step.
struct EpStepRecord {
  int64_t step = 0;
  int64_t layer = 0;                            ///< decoder index
  int64_t max_total_recv_tokens = 0;            ///< over micro-batches and ranks, slots
  std::optional<int64_t> dropped_assignments;   ///< sum over micro-batches and ranks
  std::optional<int64_t> fully_dropped_tokens;  ///< sum over micro-batches and ranks
  std::optional<double> dropped_gate_mass;      ///< sum over micro-batches
  int64_t capacity = 0;                         ///< slots a rank when the step began
  int64_t capacity_end = 0;                     ///< slots a rank when it ended
  int64_t grow_events = 0;                      ///< sum over micro-batches and EP groups
};

/// What expert parallelism did in a step.
struct CounterValues {
  int64_t prepares = 0;
  int64_t fused_prepares = 0;
  int64_t forward_dispatches = 0;
  int64_t combines = 0;
  int64_t backward_transports = 0;
  int64_t host_syncs = 0;
  int64_t all_to_all_bytes = 0;  ///< payload sent to other ranks, summed over the world
};

/// `type: "counters"`: totals beside `step`, the part spent in backward under `backward`, and what
/// saved dispatches spared it, which is in neither, under `avoided`.
struct CountersRecord {
  int64_t step = 0;
  CounterValues total;
  CounterValues backward;
  CounterValues avoided;
};

enum class ReconfigureKind { kPolicy, kGrow, kResume };

/// `type: "reconfigure"`: a capacity changed.
struct ReconfigureRecord {
  int64_t step = 0;
  int64_t epoch = 0;                                ///< of the EP session afterwards
  int64_t layer = -1;                               ///< decoder index; -1 = all layers
  ReconfigureKind kind = ReconfigureKind::kPolicy;  ///< "policy", "grow" or "resume"
  int64_t group = -1;                               ///< EP group; -1 = all
  std::optional<int64_t> micro_batch;               ///< null between two steps
  int64_t old_capacity = 0;                         ///< slots a rank
  int64_t new_capacity = 0;                         ///< slots a rank
  std::string reason;                               ///< one line for the reader
  std::string mode;                                 ///< "buffers" or "communicator"
  double drain_ms = 0;
  double finalize_ms = 0;
  double init_ms = 0;
  double alloc_ms = 0;
};

/// `type: "eval"`: one evaluation.
struct EvalRecord {
  int64_t step = 0;    ///< after which it ran
  double loss = 0;     ///< mean over all tokens
  int64_t tokens = 0;  ///< over the world
  std::optional<int64_t> dropped_assignments;
};

/// `type: "checkpoint"`: one was committed after this step.
struct CheckpointRecord {
  int64_t step = 0;
  std::string path;     ///< its directory
  int64_t bytes = 0;    ///< of all its files
  double write_ms = 0;  ///< the world stood still for so long
};

/// `type: "warning"`.
struct WarningRecord {
  std::optional<int64_t> step;  ///< null before the first step
  std::string message;
};

}  // namespace spillway::metrics
