#pragma once
// The whole config: every section, and what follows from several of them.

#include <cstdint>

#include "spillway/capacity/config.h"
#include "spillway/capacity/policy.h"
#include "spillway/config/sections.h"
#include "spillway/data/config.h"
#include "spillway/model/config.h"
#include "spillway/moe/config.h"
#include "spillway/optim/config.h"
#include "spillway/runtime/device.h"
#include "spillway/tensor/dtype.h"

namespace spillway::config {

/// One member a section. Read from JSON by json.h; `validate` (validate.h) judges it.
struct Config {
  RunConfig run;
  model::ModelConfig model;
  moe::MoeConfig moe;
  ParallelConfig parallel;
  EpOptions ep;
  capacity::CapacityConfig capacity;
  model::RecomputeConfig recompute;
  data::DataConfig data;
  optim::OptimConfig optim;
  TrainConfig train;
  CheckpointConfig checkpoint;
  LogConfig log;
};

/// Every section as an object, in the order of the documentation.
template <class V>
void visit_fields(V& v, Config& c) {
  v.object("run", [&](auto& inner) { visit_fields(inner, c.run); });
  v.object("model", [&](auto& inner) { visit_fields(inner, c.model); });
  v.object("moe", [&](auto& inner) { visit_fields(inner, c.moe); });
  v.object("parallel", [&](auto& inner) { visit_fields(inner, c.parallel); });
  v.object("ep", [&](auto& inner) { visit_fields(inner, c.ep); });
  v.object("capacity", [&](auto& inner) { visit_fields(inner, c.capacity); });
  v.object("recompute", [&](auto& inner) { visit_fields(inner, c.recompute); });
  v.object("data", [&](auto& inner) { visit_fields(inner, c.data); });
  v.object("optim", [&](auto& inner) { visit_fields(inner, c.optim); });
  v.object("train", [&](auto& inner) { visit_fields(inner, c.train); });
  v.object("checkpoint", [&](auto& inner) { visit_fields(inner, c.checkpoint); });
  v.object("log", [&](auto& inner) { visit_fields(inner, c.log); });
}

/// What the decoder is built from.
model::DecoderConfig decoder_config(const Config& config);
/// Type of activations and receive buffers.
DType compute_dtype(const Config& config);
/// Where this build computes: "auto" is the CPU.
Device device(const Config& config);
/// Tokens of one rank in one micro-batch: micro_batch * seq. Also max_tokens_per_rank of EP.
int64_t tokens_per_micro_batch(const Config& config);
/// Sequences that all ranks train on in one step.
int64_t sequences_per_step(const Config& config, int64_t world_size);
/// Slots of a MoE layer at N = ep * tokens_per_micro_batch, the same for all its MoE layers;
/// `capacity` is 0. Throws Error without experts or on sizes that `validate` refuses.
capacity::LayerFacts layer_facts(const Config& config);
/// True: `ep` metrics have a line a layer, step and micro-batch; false: the summary only.
bool full_ep_lines(const Config& config, int64_t world_size);

}  // namespace spillway::config
