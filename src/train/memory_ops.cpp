#include "memory_ops.h"

#include <algorithm>

#include "spillway/autograd/tape.h"
#include "spillway/ep/handle.h"
#include "spillway/kernels/attention.h"
#include "spillway/kernels/rms_norm.h"
#include "spillway/ops/save_names.h"

namespace spillway::train::memory {
namespace {

Form row_of(const EpFacts& facts, int64_t rows) { return {rows, facts.hidden, facts.dtype}; }
Form gate_of(const EpFacts& facts, int64_t rows) {
  return {rows, 1, accumulator_dtype(facts.dtype)};
}
Form index(int64_t rows) { return {rows, 1, ep::kIndexType}; }

BlockPtr like(Tape& tape, const Form& form, const BlockPtr& block) {
  return tape.empty(form, block->purpose());
}

/// ep::to_experts: rows that leave are staged; maps from rows to tokens are made for each part.
void to_experts(Tape& tape, const EpFacts& facts, bool gates) {
  const BlockPtr staged = tape.empty(row_of(facts, facts.rows_sent), Purpose::kWorkspace);
  tape.ledger().pass(index(facts.rows_sent).bytes());
  BlockPtr staged_gates;
  if (gates) staged_gates = tape.empty(gate_of(facts, facts.rows_sent), Purpose::kWorkspace);
  tape.ledger().pass(index(facts.rows_local).bytes());
}

}  // namespace

BlockPtr ReceiveBuffers::take(Tape& tape, const Form& form) {
  std::vector<BlockPtr>& buffers = rows_[form.rows];
  for (const BlockPtr& buffer : buffers) {
    if (buffer.use_count() == 1) return buffer;
  }
  return buffers.emplace_back(tape.empty(form, Purpose::kReceive));
}

Variable linear(Tape& tape, const Variable& x, const Variable& w, DType out,
                std::string_view save_as) {
  const Form form{x.form.elements() / w.form.columns, w.form.rows, out};
  const BlockPtr y = tape.saved(save_as, [&] { return std::vector{tape.empty(form)}; }).front();
  return tape.record(form, y, {x, w}, [form, x = x.form, kept = x.block](Backward& b) {
    BlockPtr dy = b.take_grad();
    if (form.dtype != x.dtype) dy = b.tape().empty({form.rows, form.columns, x.dtype});
    b.give(0, b.tape().empty(x));
  });
}

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  auto backward = [](Backward& back) {
    back.give(0, back.grad());
    back.give(1, back.take_grad());
  };
  const bool has_value = a.block != nullptr && b.block != nullptr;
  return tape.record(a.form, has_value ? tape.empty(a.form) : nullptr, {a, b}, backward);
}

Variable embedding(Tape& tape, int64_t num_tokens, const Variable& w) {
  const Form form{num_tokens, w.form.columns, w.form.dtype};
  return tape.record(form, tape.empty(form), {w}, [](Backward&) {});
}

Variable rms_norm(Tape& tape, const Variable& x, const Variable& w) {
  const int64_t rows = x.form.elements() / w.form.elements();
  const BlockPtr y = tape.empty(x.form);
  const BlockPtr inv_rms = tape.empty({rows, 1, accumulator_dtype(x.form.dtype)});
  const int64_t scratch =
      kernels::rms_norm_backward_workspace_bytes(rows, w.form.elements(), x.form.dtype);
  return tape.record(x.form, y, {x, w},
                     [x = x.form, kept = x.block, inv_rms, scratch](Backward& b) {
                       BlockPtr dx = b.tape().empty(x);
                       b.tape().ledger().pass(scratch);
                       b.give(0, std::move(dx));
                     });
}

Variable rope(Tape& tape, const Variable& x) {
  return tape.record(x.form, tape.empty(x.form), {x}, [x = x.form](Backward& b) {
    const BlockPtr dy = b.take_grad();
    b.give(0, b.tape().empty(x));
  });
}

Variable attention(Tape& tape, const AttentionFacts& facts, const Variable& q, const Variable& k,
                   const Variable& v) {
  const kernels::AttentionSizes sizes{facts.batch, facts.seq, facts.heads, facts.kv_heads,
                                      facts.head_dim};
  const DType dtype = q.form.dtype;
  const std::vector<BlockPtr> out = tape.saved(ops::kSaveAttention, [&] {
    const std::vector<BlockPtr> blocks{
        tape.empty(q.form),
        tape.empty({facts.batch * facts.heads, facts.seq, accumulator_dtype(dtype)})};
    tape.ledger().pass(kernels::attention_workspace_bytes(sizes, dtype, facts.threads));
    return blocks;
  });
  const int64_t scratch = kernels::attention_backward_workspace_bytes(sizes, dtype, facts.threads);
  return tape.record(q.form, out[0], {q, k, v}, [=, kept_out = out](Backward& b) {
    BlockPtr dq = b.tape().empty(q.form), dk = b.tape().empty(k.form), dv = b.tape().empty(v.form);
    b.tape().ledger().pass(scratch);
    b.give(0, std::move(dq));
    b.give(1, std::move(dk));
    b.give(2, std::move(dv));
  });
}

Variable swiglu(Tape& tape, const Variable& x, const Variable& row_scale) {
  const Form form{x.form.rows, x.form.columns / 2, x.form.dtype};
  const BlockPtr y =
      tape.saved(ops::kSaveExpertAct, [&] { return std::vector{like(tape, form, x.block)}; })
          .front();
  return tape.record(form, y, {x, row_scale},
                     [x = x.form, kept = x.block, scale = row_scale.form,
                      kept_scale = row_scale.block](Backward& b) {
                       BlockPtr dx = like(b.tape(), x, kept), d_scale;
                       if (kept_scale) d_scale = like(b.tape(), scale, kept_scale);
                       b.give(0, std::move(dx));
                       b.give(1, std::move(d_scale));
                     });
}

Variable grouped_linear(Tape& tape, const Variable& x, const Variable& w, int64_t width,
                        std::string_view save_as) {
  const Form form{x.form.rows, width, x.form.dtype};
  const BlockPtr y =
      tape.saved(save_as, [&] { return std::vector{like(tape, form, x.block)}; }).front();
  return tape.record(form, y, {x, w}, [x = x.form, kept = x.block](Backward& b) {
    b.give(0, like(b.tape(), x, kept));
  });
}

Variable cross_entropy(Tape& tape, const Variable& logits) {
  const Form a_row{logits.form.rows, 1, logits.form.dtype};
  const BlockPtr row_loss = tape.empty(a_row), lse = tape.empty(a_row);
  return tape.record({1, 1, logits.form.dtype}, tape.empty({1, 1, logits.form.dtype}), {logits},
                     [form = logits.form, kept = logits.block, lse](Backward& b) {
                       b.give(0, b.tape().empty(form));
                     });
}

Routed route(Tape& tape, const Variable& logits, int64_t top_k, const BalanceFacts& balance) {
  const Form gates{logits.form.rows, top_k, logits.form.dtype};
  const BlockPtr probs = tape.empty(logits.form);
  bool chosen_now = false;
  const std::vector<BlockPtr> chosen = tape.saved(autograd::Tape::kAlwaysSaved, [&] {
    chosen_now = true;
    return std::vector{tape.empty(gates), tape.empty({gates.rows, top_k, DType::kI32})};
  });
  if (!chosen_now) tape.ledger().pass(gates.bytes());
  const Form sums{logits.form.columns + 1, 1, DType::kF64};
  if (balance.of_world) {
    tape.saved(autograd::Tape::kAlwaysSaved, [&] { return std::vector{tape.empty(sums)}; });
  }
  const BlockPtr slope = tape.empty({balance.rows, logits.form.columns, DType::kF64});
  const std::vector<Variable> outputs =
      tape.record({{gates, chosen[0]}, {{1, 1, logits.form.dtype}, nullptr}}, {logits},
                  [form = logits.form, kept = logits.block, chosen, probs, slope,
                   has_term = balance.rows > 0](Backward& b) {
                    const BlockPtr d_gate = b.take_grad();
                    BlockPtr d_probs;
                    if (has_term) d_probs = b.tape().empty(form);
                    b.give(0, b.tape().empty(form));
                  });
  return {chosen[1], outputs[0], outputs[1]};
}

Dispatched dispatch(Tape& tape, ReceiveBuffers& buffers, const EpFacts& facts, int64_t capacity,
                    const Variable& x, const Routed& routed) {
  const int64_t assignments = routed.gate.form.elements();
  // The header is kept whatever the region saves. Counts: of rows sent and received by expert, and
  // by local expert those of the handle and of ep::PrepareResult.
  constexpr auto kHeader = static_cast<int64_t>(sizeof(ep::HandleHeader));
  const int64_t counts = 2 * facts.num_experts + 5 * facts.experts_per_rank;
  const auto made_of = [&] {
    // The handle: assignment of each row sent; assignment and slot of each row that stays; row_of.
    std::vector<BlockPtr> blocks;
    for (const int64_t rows : {facts.rows_sent, facts.rows_local, facts.rows_local, assignments}) {
      blocks.push_back(tape.empty(index(rows)));
    }
    blocks.push_back(buffers.take(tape, row_of(facts, capacity)));
    blocks.push_back(tape.empty(gate_of(facts, capacity), Purpose::kReceive));
    to_experts(tape, facts, /*gates=*/true);
    return blocks;
  };
  const auto no_blocks = [] { return std::vector<BlockPtr>{}; };
  if (tape.recomputing()) tape.saved(autograd::Tape::kAlwaysSaved, no_blocks, kHeader);
  const std::vector<BlockPtr> made = tape.saved(
      ops::kSaveDispatch, made_of, kHeader + counts * static_cast<int64_t>(sizeof(int64_t)));
  if (!tape.recomputing()) tape.saved(autograd::Tape::kAlwaysSaved, no_blocks, kHeader);
  const std::vector<BlockPtr> handle(made.begin(), made.end() - 2);
  const std::vector<Variable> outputs = tape.record(
      {{row_of(facts, capacity), *(made.end() - 2)}, {gate_of(facts, capacity), made.back()}},
      {x, routed.gate}, [facts, handle, x = x.form, gate = routed.gate.form](Backward& b) {
        const BlockPtr d_recv = b.take_grad(0), d_gate = b.take_grad(1);
        Tape& t = b.tape();
        const BlockPtr staged = t.empty(row_of(facts, facts.rows_sent), Purpose::kWorkspace);
        const BlockPtr staged_gates = t.empty(gate_of(facts, facts.rows_sent), Purpose::kWorkspace);
        BlockPtr dx = t.empty(x), d_gates = t.empty(gate);
        b.give(0, std::move(dx));
        b.give(1, std::move(d_gates));
      });
  return {handle, outputs[0], outputs[1]};
}

Variable combine(Tape& tape, ReceiveBuffers& buffers, const EpFacts& facts, const Dispatched& sent,
                 int64_t num_tokens, const Variable& expert_out) {
  const Form form = row_of(facts, num_tokens);
  BlockPtr out;
  if (!tape.recomputing()) {
    const BlockPtr staged = tape.empty(row_of(facts, facts.rows_sent), Purpose::kWorkspace);
    out = tape.empty(form);
  }
  return tape.record(form, out, {expert_out},
                     [&buffers, facts, handle = sent.handle, rows = expert_out.form](Backward& b) {
                       BlockPtr d_expert_out = buffers.take(b.tape(), rows);
                       to_experts(b.tape(), facts, /*gates=*/false);
                       b.give(0, std::move(d_expert_out));
                     });
}

}  // namespace spillway::train::memory
