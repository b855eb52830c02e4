// Tokens to experts, and the gradients of that back to the tokens.
#include "buffers.h"
#include "spillway/kernels/kept_gates.h"
#include "spillway/kernels/rows.h"
#include "transport.h"

namespace spillway::ep {

DispatchResult Session::dispatch(const RoutingHandle& handle, const Call& call,
                                 const Tensor& tokens, const Tensor& gate) {
  constexpr const char* kWhere = "dispatch";
  check_handle(handle, call, kWhere);
  check_tokens(handle, kWhere, "tokens", tokens);
  check_gates(kWhere, "gate", gate, handle.row_of.shape());
  DispatchResult result;
  result.recv_tokens = receive_buffer(handle);
  result.recv_gate = Tensor::empty(ctx_, {handle.header.capacity}, gate.dtype(), Purpose::kReceive);
  Tensor sent_gate = gate;
  // Where none of this rank's assignments is dropped the factors are 1.
  if (config_.renormalize_kept && handle.topk_idx.defined()) {
    sent_gate = Tensor::empty(ctx_, gate.shape(), gate.dtype(), Purpose::kWorkspace);
    kernels::renormalize_kept(ctx_, {gate, handle.row_of, handle.topk_idx, sent_gate});
  }
  to_experts({ctx_, topology_.ep_group(), handle, config_.poison}, tokens, result.recv_tokens,
             sent_gate, result.recv_gate);
  ctx_.counters().add(&CounterSet::forward_dispatches);
  return result;
}

DispatchBackwardResult Session::dispatch_backward(const RoutingHandle& handle, const Call& call,
                                                  const Tensor& d_recv, const Tensor& d_gate,
                                                  const Tensor& gate) {
  constexpr const char* kWhere = "dispatch_backward";
  check_handle(handle, call, kWhere);
  check_slots(handle, kWhere, "d_recv", d_recv);
  check_gates(kWhere, "d_gate", d_gate, {handle.header.capacity});
  if (config_.renormalize_kept) {
    SPILLWAY_CHECK(gate.defined(), kWhere,
                   ": gate is undefined; allowed under renormalize_kept: the gates given to "
                   "dispatch, ",
                   handle.row_of.shape());
    check_gates(kWhere, "gate", gate, handle.row_of.shape());
    SPILLWAY_CHECK(gate.dtype() == d_gate.dtype(), kWhere, ": gate is ", dtype_name(gate.dtype()),
                   "; allowed: the dtype of d_gate, ", dtype_name(d_gate.dtype()));
  }
  const int64_t num_sent = handle.send_assignment.dim(0);
  Tensor staged_rows =
      Tensor::empty(ctx_, {num_sent, config_.hidden}, config_.dtype, Purpose::kWorkspace);
  Tensor staged_gates = Tensor::empty(ctx_, {num_sent}, d_gate.dtype(), Purpose::kWorkspace);
  to_tokens({ctx_, topology_.ep_group(), handle}, d_recv, staged_rows, d_gate, staged_gates);

  DispatchBackwardResult result;
  result.dx = Tensor::empty(ctx_, {handle.header.num_tokens, config_.hidden}, config_.dtype);
  kernels::sum_rows(ctx_, handle.row_of, staged_rows, d_recv, result.dx);
  result.d_gate = Tensor::empty(ctx_, handle.row_of.shape(), d_gate.dtype());
  kernels::pick_scalars(ctx_, handle.row_of, staged_gates, d_gate, result.d_gate);
  if (config_.renormalize_kept) {
    kernels::renormalize_kept_backward(
        ctx_, {result.d_gate, gate, handle.row_of, handle.topk_idx, result.d_gate});
  }
  ctx_.counters().add(&CounterSet::backward_transports);
  return result;
}

}  // namespace spillway::ep
