// Expert outputs back to their tokens, and the gradient of that to the experts.
#include "buffers.h"
#include "spillway/kernels/rows.h"
#include "transport.h"

namespace spillway::ep {

Tensor Session::combine(const RoutingHandle& handle, const Call& call, const Tensor& expert_out) {
  constexpr const char* kWhere = "combine";
  check_handle(handle, call, kWhere);
  check_slots(handle, kWhere, "expert_out", expert_out);
  Tensor staged = Tensor::empty(ctx_, {handle.send_assignment.dim(0), config_.hidden},
                                config_.dtype, Purpose::kWorkspace);
  Tensor no_gates;
  to_tokens({ctx_, topology_.ep_group(), handle}, expert_out, staged, no_gates, no_gates);
  Tensor out = Tensor::empty(ctx_, {handle.header.num_tokens, config_.hidden}, config_.dtype);
  kernels::sum_rows(ctx_, handle.row_of, staged, expert_out, out);
  ctx_.counters().add(&CounterSet::combines);
  return out;
}

Tensor Session::combine_backward(const RoutingHandle& handle, const Call& call,
                                 const Tensor& dout) {
  constexpr const char* kWhere = "combine_backward";
  check_handle(handle, call, kWhere);
  check_tokens(handle, kWhere, "dout", dout);
  Tensor d_expert_out = receive_buffer(handle);
  Tensor no_gates;
  to_experts({ctx_, topology_.ep_group(), handle, config_.poison}, dout, d_expert_out, no_gates,
             no_gates);
  ctx_.counters().add(&CounterSet::backward_transports);
  return d_expert_out;
}

}  // namespace spillway::ep
