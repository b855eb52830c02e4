#pragma once
// The config sections that no component below owns: `run`, `parallel`, `ep`, `train`,
// `checkpoint`, `log`. Each struct has one field list, which drives parsing, dumping and the
// detection of unknown keys; see capacity/config.h for what a visitor V has.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "spillway/core/log.h"
#include "spillway/plan/drop_order.h"
#include "spillway/tensor/dtype.h"

namespace spillway::config {

/// `run.device`; "auto" takes the best device of this build.
enum class DeviceChoice { kAuto, kCpu, kCuda };
/// `parallel.transport`; "auto": self in a world of 1, else mpi.
enum class Transport { kAuto, kSelf, kMpi };
/// `train.on_nonfinite`
enum class OnNonfinite { kStop, kSkip };
/// `log.ep`; "auto": full up to kFullEpRanks ranks, summary above.
enum class EpLines { kAuto, kFull, kSummary };

inline constexpr std::array<std::pair<std::string_view, DeviceChoice>, 3> kDeviceChoices{{
    {"auto", DeviceChoice::kAuto},
    {"cpu", DeviceChoice::kCpu},
    {"cuda", DeviceChoice::kCuda},
}};
inline constexpr std::array<std::pair<std::string_view, DType>, 2> kDtypeChoices{{
    {"f32", DType::kF32},
    {"bf16", DType::kBF16},
}};
inline constexpr std::array<std::pair<std::string_view, Transport>, 3> kTransportChoices{{
    {"auto", Transport::kAuto},
    {"self", Transport::kSelf},
    {"mpi", Transport::kMpi},
}};
inline constexpr std::array<std::pair<std::string_view, OnNonfinite>, 2> kOnNonfiniteChoices{{
    {"stop", OnNonfinite::kStop},
    {"skip", OnNonfinite::kSkip},
}};
inline constexpr std::array<std::pair<std::string_view, EpLines>, 3> kEpLinesChoices{{
    {"auto", EpLines::kAuto},
    {"full", EpLines::kFull},
    {"summary", EpLines::kSummary},
}};
inline constexpr std::array<std::pair<std::string_view, log::Level>, 5> kLevelChoices{{
    {"debug", log::Level::kDebug},
    {"info", log::Level::kInfo},
    {"warning", log::Level::kWarning},
    {"error", log::Level::kError},
    {"off", log::Level::kOff},
}};

/// The largest world whose `ep` lines are full when `log.ep` is "auto".
inline constexpr int64_t kFullEpRanks = 64;

/// The section `run`.
struct RunConfig {
  /// The run directory: metrics go there. Relative paths: from the working directory.
  std::string dir = "runs/run";
  /// Of the initial weights and the order of the data; not negative.
  int64_t seed = 1;
  DeviceChoice device = DeviceChoice::kAuto;
  /// Type of activations and receive buffers; weights are updated in f32.
  DType dtype = DType::kF32;
  /// Bitwise repeatable kernels only. The CPU has no others.
  bool deterministic = false;
};

/// The section `parallel`.
struct ParallelConfig {
  /// Ranks that together hold one copy of all experts; divides the world. dp = world / ep.
  int64_t ep = 1;
  Transport transport = Transport::kAuto;
  /// 1: ZeRO-1, the optimizer's state is spread over the ranks that share it (dense parameters: the
  /// world, experts: the dp ranks). 0: every rank has all of the state of its parameters.
  int64_t zero = 0;
};

/// The section `ep`.
struct EpOptions {
  /// Which assignments a rank keeps when it overflows: the longest prefix that fits of an order.
  /// "tail": by expert, then source rank, then token; "fair": every source loses its share;
  /// "random": by a hash, another in every layer, micro-batch and step; "score": highest gate
  /// (rounded to bf16) first.
  plan::DropOrder drop_order = plan::DropOrder::kTail;
  /// Seed of the order "random"; not negative.
  int64_t drop_seed = 0;
  /// Gates that a token keeps times (sum of its gates) / (sum of those kept); the first sum is a
  /// constant in backward.
  bool renormalize_kept = false;
  /// Prepare and dispatch in one call, with the same bits.
  bool fused_prepare = false;
  /// Debug: the unspecified tail of receive buffers holds NaN, and handles' maps are checked.
  bool poison = false;
};

/// The section `train`.
struct TrainConfig {
  /// Optimizer steps; at least 1.
  int64_t steps = 100;
  /// Sequences a rank and micro-batch; at least 1.
  int64_t micro_batch = 1;
  /// Micro-batches a step; at least 1.
  int64_t grad_accum = 1;
  /// Steps between two evaluations; 0: only after the last step, when `data.valid` is given.
  int64_t eval_every = 0;
  /// Global batches of one evaluation, fewer if the data ends; at least 1.
  int64_t eval_steps = 10;
  /// Loss or gradients that are not finite: "stop" ends the job, "skip" leaves the weights alone.
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  /// Steps between two comparisons of the replicated parameters over the world; 0: never.
  int64_t check_replicas = 100;
};

/// Values of `checkpoint.resume` that are no directory.
inline constexpr const char* kNoResume = "none";
inline constexpr const char* kAutoResume = "auto";

/// The section `checkpoint`.
struct CheckpointConfig {
  /// Steps between two checkpoints, one more after the last step; 0: only when a signal asks.
  int64_t every = 0;
  /// Checkpoints that stay on disk, the newest ones; at least 1.
  int64_t keep = 2;
  /// "none", "auto" (the newest of the run directory; none there: from the start), or the directory
  /// of a checkpoint or of a run.
  std::string resume = kNoResume;
};

/// The section `log`.
struct LogConfig {
  /// Steps between two lines on the console; 0: none. The metrics file has every step.
  int64_t every = 10;
  /// Name of the metrics file in the run directory.
  std::string metrics = "metrics.jsonl";
  /// "full": a line of metrics a MoE layer, step and micro-batch; "summary": a layer and step.
  EpLines ep = EpLines::kAuto;
  /// Least level of the console.
  log::Level level = log::Level::kInfo;
};

template <class V>
void visit_fields(V& v, RunConfig& c) {
  v.field("dir", c.dir);
  v.field("seed", c.seed);
  v.choice("device", c.device, kDeviceChoices);
  v.choice("dtype", c.dtype, kDtypeChoices);
  v.field("deterministic", c.deterministic);
}

template <class V>
void visit_fields(V& v, ParallelConfig& c) {
  v.field("ep", c.ep);
  v.choice("transport", c.transport, kTransportChoices);
  v.field("zero", c.zero);
}

template <class V>
void visit_fields(V& v, EpOptions& c) {
  v.choice("drop_order", c.drop_order, plan::kDropOrderChoices);
  v.field("drop_seed", c.drop_seed);
  v.field("renormalize_kept", c.renormalize_kept);
  v.field("fused_prepare", c.fused_prepare);
  v.field("poison", c.poison);
}

template <class V>
void visit_fields(V& v, TrainConfig& c) {
  v.field("steps", c.steps);
  v.field("micro_batch", c.micro_batch);
  v.field("grad_accum", c.grad_accum);
  v.field("eval_every", c.eval_every);
  v.field("eval_steps", c.eval_steps);
  v.choice("on_nonfinite", c.on_nonfinite, kOnNonfiniteChoices);
  v.field("check_replicas", c.check_replicas);
}

template <class V>
void visit_fields(V& v, CheckpointConfig& c) {
  v.field("every", c.every);
  v.field("keep", c.keep);
  v.field("resume", c.resume);
}

template <class V>
void visit_fields(V& v, LogConfig& c) {
  v.field("every", c.every);
  v.field("metrics", c.metrics);
  v.choice("ep", c.ep, kEpLinesChoices);
  v.choice("level", c.level, kLevelChoices);
}

}  // namespace spillway::config
