#include "spillway/ops/dispatch.h"

#include "spillway/ops/save_names.h"

namespace spillway::ops {

using autograd::Backward;

namespace {

ep::PrepareAndDispatchResult run(ep::Session& session, const DispatchOptions& options,
                                 const Tensor& x, const Tensor& topk_idx, const Tensor& gate,
                                 int64_t capacity) {
  const ep::PrepareArgs args{.call = options.call,
                             .topk_idx = topk_idx,
                             .gate = gate,
                             .sizing = options.sizing,
                             .capacity = capacity};
  if (options.fused) return session.prepare_and_dispatch(args, x);
  ep::PrepareAndDispatchResult result;
  result.prepare = session.prepare(args);
  result.dispatch = session.dispatch(result.prepare.handle, options.call, x, gate);
  return result;
}

}  // namespace

DispatchOutput dispatch(Tape& tape, ep::Session& session, const DispatchOptions& options,
                        const Variable& x, const Tensor& topk_idx, const Variable& gate) {
  int64_t capacity = 0;  // of the first run, when this one is not the first
  if (tape.recomputing()) {
    capacity = tape.saved(Tape::kAlwaysSaved, [] { return int64_t{0}; });
  }
  ep::PrepareAndDispatchResult result = tape.saved(kSaveDispatch, [&] {
    return run(session, options, x.value(), topk_idx, gate.value(), capacity);
  });
  ep::PrepareResult& prepare = result.prepare;
  if (!tape.recomputing()) {
    tape.saved(Tape::kAlwaysSaved, [&] { return prepare.handle.header.capacity; });
  }
  auto zones =
      std::make_shared<const Zones>(Zones{prepare.handle.zone_begin, prepare.handle.token_counts});
  std::vector<Variable> outputs = tape.record(
      "dispatch", {result.dispatch.recv_tokens, result.dispatch.recv_gate}, {x, gate},
      [&session, handle = prepare.handle, call = options.call,
       rows = result.dispatch.recv_tokens.shape(), dtype = x.dtype()](Backward& b) {
        Tensor d_recv = b.take_grad(0);
        Tensor d_gate = b.take_grad(1);
        if (!d_recv.defined()) d_recv = Tensor::zeros(b.ctx(), rows, dtype, Purpose::kReceive);
        if (!d_gate.defined()) {
          d_gate = Tensor::zeros(b.ctx(), {rows[0]}, accumulator_dtype(dtype), Purpose::kReceive);
        }
        ep::DispatchBackwardResult back = session.dispatch_backward(handle, call, d_recv, d_gate);
        b.give(0, std::move(back.dx));
        b.give(1, std::move(back.d_gate));
      });
  return {outputs[0], outputs[1], std::move(zones), std::move(prepare)};
}

Variable combine(Tape& tape, ep::Session& session, const ep::RoutingHandle& handle,
                 const ep::Call& call, const Variable& expert_out) {
  auto backward = [&session, handle, call](Backward& b) {
    b.give(0, session.combine_backward(handle, call, b.grad()));
  };
  const Shape shape{handle.header.num_tokens, expert_out.dim(1)};
  if (tape.recomputing()) {
    return tape.record_without_value("combine", shape, expert_out.dtype(), {expert_out}, backward);
  }
  return tape.record("combine", session.combine(handle, call, expert_out.value()), {expert_out},
                     backward);
}

}  // namespace spillway::ops
