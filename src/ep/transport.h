#pragma once
// How rows, and the scalars that go with them, travel between tokens and slots: one mechanism for
// both directions, forward and backward.
//
// R = rows sent to other ranks, C = slots. On the tokens' side rows lie in a staging buffer in
// send-row order (destination rank, local expert, token), on the experts' side in the receive
// buffer. Rows that stay on their rank never enter a staging buffer.

#include "spillway/comm/communicator.h"
#include "spillway/ep/handle.h"

namespace spillway::ep {

/// What a transport stands on. `poison`: rows past the last zone hold NaN.
struct Route {
  Context& ctx;
  comm::Communicator& group;
  const RoutingHandle& handle;
  bool poison = false;
};

/// Fills a receive buffer: each assignment's row of `rows` [T,H] lands in its slot of `row_slots`
/// [C,H]; padding rows are zeroed. With `gates` [T,K] defined, each assignment's gate lands in
/// `gate_slots` [C] likewise, in the same transport.
void to_experts(const Route& route, const Tensor& rows, Tensor& row_slots, const Tensor& gates,
                Tensor& gate_slots);

/// Rows of other ranks' slots come back to `staged_rows` [R,H] in send-row order; `gate_slots` [C]
/// to `staged_gates` [R] when defined. Padding and tail are not read.
void to_tokens(const Route& route, const Tensor& row_slots, Tensor& staged_rows,
               const Tensor& gate_slots, Tensor& staged_gates);

}  // namespace spillway::ep
