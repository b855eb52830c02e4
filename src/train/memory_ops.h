#pragma once
// The ops by what they hold: each allocates, keeps for backward and lets go as the function of the
// same name in ops/ does. Scalars and other things of a few bytes are left out.

#include <string_view>

#include "memory_tape.h"

namespace spillway::train::memory {

/// The experts' side of one rank.
struct EpFacts {
  int64_t hidden = 0;
  int64_t top_k = 0;
  int64_t rows_sent = 0;   ///< R: rows of a micro-batch that go to other ranks
  int64_t rows_local = 0;  ///< M: those that stay
  int64_t num_experts = 0;
  int64_t experts_per_rank = 0;
  DType dtype = DType::kF32;
};

/// Receive buffers that are kept from call to call, as in src/ep/buffers.h.
class ReceiveBuffers {
 public:
  BlockPtr take(Tape& tape, const Form& form);

 private:
  std::map<int64_t, std::vector<BlockPtr>> rows_;  // by capacity
};

/// [rows, width] = x w^T, `width` = rows of w.
Variable linear(Tape& tape, const Variable& x, const Variable& w, DType out,
                std::string_view save_as = {});
Variable add(Tape& tape, const Variable& a, const Variable& b);
Variable embedding(Tape& tape, int64_t num_tokens, const Variable& w);
/// Over rows of w.columns elements.
Variable rms_norm(Tape& tape, const Variable& x, const Variable& w);
Variable rope(Tape& tape, const Variable& x);

struct AttentionFacts {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t threads = 1;
};
Variable attention(Tape& tape, const AttentionFacts& facts, const Variable& q, const Variable& k,
                   const Variable& v);
/// `row_scale`: its gradient is null for a dense network.
Variable swiglu(Tape& tape, const Variable& x, const Variable& row_scale);
/// One weight [width, x.columns] an expert.
Variable grouped_linear(Tape& tape, const Variable& x, const Variable& w, int64_t width,
                        std::string_view save_as = {});
Variable cross_entropy(Tape& tape, const Variable& logits);

struct Routed {
  BlockPtr topk_idx;
  Variable gate, losses;
};
struct BalanceFacts {
  int64_t rows = 0;       ///< [E] that the balance term keeps; 0: no term
  bool of_world = false;  ///< with sums over ranks
};
Routed route(Tape& tape, const Variable& logits, int64_t top_k, const BalanceFacts& balance);

struct Dispatched {
  std::vector<BlockPtr> handle;  ///< its maps
  Variable recv_tokens, recv_gate;
};
Dispatched dispatch(Tape& tape, ReceiveBuffers& buffers, const EpFacts& facts, int64_t capacity,
                    const Variable& x, const Routed& routed);
Variable combine(Tape& tape, ReceiveBuffers& buffers, const EpFacts& facts, const Dispatched& sent,
                 int64_t num_tokens, const Variable& expert_out);

}  // namespace spillway::train::memory
