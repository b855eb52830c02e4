#pragma once

#include "spillway/autograd/tape.h"
#include "spillway/ep/session.h"
#include "spillway/ops/zones.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

struct DispatchOptions {
  ep::Call call;
  ep::Sizing sizing = ep::Sizing::kLive;
  bool fused = false;  ///< prepare and dispatch in one call
};

struct DispatchOutput {
  Variable recv_tokens;       ///< [C,H]
  Variable recv_gate;         ///< [C]
  ZonesPtr zones;             ///< rows of each local expert, without padding
  ep::PrepareResult prepare;  ///< its ledger is empty when a saved dispatch was handed out again
};

/// Sends each token's row and weight to the ranks of its experts. x [T,H], topk_idx i32 [T,K],
/// gate [T,K]. Saved as a whole as kSaveDispatch in a recompute region; what that spared is counted
/// (Counters::avoided). Where it is not saved, the second dispatch must reproduce the header of the
/// first one's handle: Error naming the field and both values otherwise. With EpConfig::poison the
/// header holds a checksum of the maps, so they are compared too.
DispatchOutput dispatch(Tape& tape, ep::Session& session, const DispatchOptions& options,
                        const Variable& x, const Tensor& topk_idx, const Variable& gate);

/// y[T,H]: the sum of each token's kept rows of expert_out [C,H]. Not repeated when a region is
/// computed again: its value is then absent.
Variable combine(Tape& tape, ep::Session& session, const ep::RoutingHandle& handle,
                 const ep::Call& call, const Variable& expert_out);

}  // namespace spillway::ops
