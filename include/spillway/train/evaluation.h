#pragma once

#include "spillway/config/config.h"
#include "spillway/data/batches.h"
#include "spillway/model/decoder.h"
#include "spillway/train/capacity_manager.h"
#include "spillway/train/signals.h"

namespace spillway::train {

struct EvalResult {
  double loss = 0.0;  ///< nats a token, mean over all tokens of the world
  int64_t tokens = 0;
  int64_t dropped_assignments = 0;
  bool stopped = false;     ///< a signal ended it at a batch boundary; loss is of what was read
  bool checkpoint = false;  ///< a signal asked for a checkpoint meanwhile
};

/// Collective of the world. Runs the first `eval_steps` global batches in file order; counts and
/// capacity history are untouched.
EvalResult evaluate(Context& ctx, comm::Communicator& world, const config::Config& config,
                    const model::Decoder& decoder, const data::BatchSource& source,
                    CapacityManager& capacity, SignalGate& signals, int64_t step);

}  // namespace spillway::train
