#pragma once
// The global batch: which sequence is trained on when, by which rank.
//
// Sequence q is tokens [q*seq, q*seq + seq + 1) of the stream: `seq` inputs and their `seq` next
// tokens; a tail short of a sequence is dropped. An epoch goes once through all N sequences, in a
// seeded order of its own. Global index g = 0, 1, 2, ... is position g mod N of epoch g / N. With
// G = world * micro_batch * grad_accum, step s (1-based) takes g in [(s-1)*G, s*G), and in it cell
// c = m*world + rank (m = micro-batch of the step) takes `micro_batch` sequences from c*micro_batch
// on: the set of a step is the same for any split of the product G.

#include <cstdint>

#include "spillway/data/token_file.h"
#include "spillway/tensor/tensor.h"

namespace spillway::data {

/// This rank's place in the global batch.
struct BatchLayout {
  int64_t world = 1;        ///< ranks; each has sequences of its own
  int64_t rank = 0;         ///< in [0, world)
  int64_t micro_batch = 1;  ///< sequences a rank and micro-batch
  int64_t grad_accum = 1;   ///< micro-batches a step

  /// Sequences of a global batch (G).
  int64_t global_sequences() const;
};

struct BatchOptions {
  int64_t seq = 256;    ///< tokens a sequence
  bool shuffle = true;  ///< false: every epoch in file order
  uint64_t seed = 0;    ///< of the orders (`run.seed`)
  BatchLayout layout;
};

struct Batch {
  Tensor tokens;   ///< i32 [micro_batch, seq]
  Tensor targets;  ///< i32 [micro_batch, seq]: tokens moved on by one
};

/// Batches as a pure function of the step: no state moves, so the step number is the cursor. A
/// checkpoint that holds the step (and a config with the same data, seq, seed and G) holds all
/// that is needed to go on. Move-only.
class BatchSource {
 public:
  /// DataError when the stream is shorter than one sequence; Error for a layout out of range.
  BatchSource(TokenStream stream, const BatchOptions& options);

  /// Sequences of an epoch (N).
  int64_t num_sequences() const { return num_sequences_; }
  const BatchOptions& options() const { return options_; }
  /// The sequence of global index g >= 0 in training order.
  int64_t sequence_at(int64_t g) const;

  /// This rank's part of micro-batch m in [0, grad_accum) of a step (1-based).
  Batch batch(Context& ctx, int64_t step, int64_t micro_batch_index) const;

  /// Global batches of an evaluation: `wanted`, or as many full ones as the data holds. DataError
  /// when it holds none.
  int64_t num_eval_batches(int64_t wanted) const;
  /// This rank's part of micro-batch m of a global batch (0-based) in file order. DataError beyond
  /// the last full one.
  Batch eval_batch(Context& ctx, int64_t batch_index, int64_t micro_batch_index) const;

 private:
  int64_t first_of_cell(int64_t batch_index, int64_t micro_batch_index) const;
  Batch empty_batch(Context& ctx) const;
  void read_row(Batch& batch, int64_t row, int64_t sequence) const;

  TokenStream stream_;
  BatchOptions options_;
  int64_t global_sequences_;
  int64_t num_sequences_;
};

}  // namespace spillway::data
