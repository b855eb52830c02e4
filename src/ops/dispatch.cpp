#include "spillway/ops/dispatch.h"

#include <utility>

#include "spillway/ops/save_names.h"

namespace spillway::ops {

using autograd::Backward;

namespace {

/// A dispatch and what it cost: a saved one spares a second run of the same cost.
struct Sent {
  ep::PrepareAndDispatchResult result;
  CounterSet cost;
};

/// Received rows and gates, the handle and the counts.
int64_t held_bytes(const Sent& sent) {
  const ep::PrepareResult& prepare = sent.result.prepare;
  const ep::DispatchResult& dispatch = sent.result.dispatch;
  const size_t counts = prepare.token_counts.size() + prepare.slot_counts.size();
  return dispatch.recv_tokens.bytes() + dispatch.recv_gate.bytes() + prepare.handle.bytes() +
         static_cast<int64_t>(counts * sizeof(int64_t));
}

Sent send(Context& ctx, ep::Session& session, const DispatchOptions& options, const Tensor& x,
          const Tensor& topk_idx, const Tensor& gate, int64_t capacity) {
  const ep::PrepareArgs args{.call = options.call,
                             .topk_idx = topk_idx,
                             .gate = gate,
                             .sizing = options.sizing,
                             .capacity = capacity};
  const CounterSet before = ctx.counters().total();
  Sent sent;
  if (options.fused) {
    sent.result = session.prepare_and_dispatch(args, x);
  } else {
    sent.result.prepare = session.prepare(args);
    sent.result.dispatch = session.dispatch(sent.result.prepare.handle, options.call, x, gate);
  }
  sent.cost = ctx.counters().total();
  sent.cost -= before;
  return sent;
}

template <typename T>
void require_field(const char* field, const T& first, const T& again) {
  SPILLWAY_CHECK(first == again, "a recomputed dispatch gives another routing handle: its ", field,
                 " is ", again, ", that of the first one ", first);
}

/// Backward works with what forward sent, so a second dispatch must be the first one again.
void require_same_header(const ep::HandleHeader& first, const ep::HandleHeader& again) {
  using H = ep::HandleHeader;
  constexpr std::pair<const char*, int64_t H::*> kIntegers[] = {{"epoch", &H::epoch},
                                                                {"layer", &H::layer},
                                                                {"micro_batch", &H::micro_batch},
                                                                {"step", &H::step},
                                                                {"num_tokens", &H::num_tokens},
                                                                {"top_k", &H::top_k},
                                                                {"num_experts", &H::num_experts},
                                                                {"ep", &H::ep},
                                                                {"alignment", &H::alignment},
                                                                {"capacity", &H::capacity},
                                                                {"index_type", &H::index_type},
                                                                {"drop_order", &H::drop_order}};
  require_field("session_id", first.session_id, again.session_id);
  for (const auto& [name, field] : kIntegers) require_field(name, first.*field, again.*field);
  // 0 unless EpConfig::poison.
  require_field("maps_checksum", first.maps_checksum, again.maps_checksum);
  require_field("checksum", first.checksum, again.checksum);
}

}  // namespace

DispatchOutput dispatch(Tape& tape, ep::Session& session, const DispatchOptions& options,
                        const Variable& x, const Tensor& topk_idx, const Variable& gate) {
  // Of the first run, when this one is not the first.
  ep::HandleHeader first;
  if (tape.recomputing()) first = tape.saved(Tape::kAlwaysSaved, [] { return ep::HandleHeader{}; });
  ep::Ledger ledger;
  bool sent_now = false;
  Sent sent = tape.saved(kSaveDispatch, [&] {
    sent_now = true;
    Sent made =
        send(tape.ctx(), session, options, x.value(), topk_idx, gate.value(), first.capacity);
    ledger = std::move(made.result.prepare.ledger);  // of the metrics: not saved
    return made;
  });
  ep::PrepareResult& prepare = sent.result.prepare;
  prepare.ledger = std::move(ledger);
  if (!tape.recomputing()) {
    tape.saved(Tape::kAlwaysSaved, [&] { return prepare.handle.header; });
  } else if (sent_now) {
    require_same_header(first, prepare.handle.header);
  } else {
    tape.ctx().counters().avoid(sent.cost);
  }
  auto zones =
      std::make_shared<const Zones>(Zones{prepare.handle.zone_begin, prepare.handle.token_counts});
  const ep::DispatchResult& received = sent.result.dispatch;
  std::vector<Variable> outputs = tape.record(
      "dispatch", {received.recv_tokens, received.recv_gate}, {x, gate},
      [&session, handle = prepare.handle, call = options.call, given = gate.value(),
       rows = received.recv_tokens.shape(), dtype = x.dtype()](Backward& b) {
        Tensor d_recv = b.take_grad(0);
        Tensor d_gate = b.take_grad(1);
        if (!d_recv.defined()) d_recv = Tensor::zeros(b.ctx(), rows, dtype, Purpose::kReceive);
        if (!d_gate.defined()) {
          d_gate = Tensor::zeros(b.ctx(), {rows[0]}, accumulator_dtype(dtype), Purpose::kReceive);
        }
        ep::DispatchBackwardResult back =
            session.dispatch_backward(handle, call, d_recv, d_gate, given);
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
