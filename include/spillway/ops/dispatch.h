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
  Variable recv_tokens;  ///< [C,H]
  Variable recv_gate;    ///< [C]
  ZonesPtr zones;        ///< rows of each local expert, without padding
  ep::PrepareResult prepare;
};

/// Sends each token's row and weight to the ranks of its experts. x [T,H], topk_idx i32 [T,K],
/// gate [T,K]. Saved as a whole as kSaveDispatch in a recompute region.
DispatchOutput dispatch(Tape& tape, ep::Session& session, const DispatchOptions& options,
                        const Variable& x, const Tensor& topk_idx, const Variable& gate);

/// y[T,H]: the sum of each token's kept rows of expert_out [C,H]. Not repeated when a region is
/// computed again: its value is then absent.
Variable combine(Tape& tape, ep::Session& session, const ep::RoutingHandle& handle,
                 const ep::Call& call, const Variable& expert_out);

}  // namespace spillway::ops
