#include "spillway/data/batches.h"

#include <algorithm>
#include <utility>

#include "spillway/core/error.h"
#include "spillway/core/math.h"
#include "spillway/data/permutation.h"

namespace spillway::data {
namespace {

/// Maps global indices to sequences; keeps the order of the epoch that was asked for last.
class TrainingOrder {
 public:
  TrainingOrder(int64_t num_sequences, const BatchOptions& options)
      : options_(options), order_(num_sequences, options.seed, 0) {}

  int64_t operator()(int64_t g) {
    const int64_t epoch = g / order_.size();
    const int64_t position = g % order_.size();
    if (!options_.shuffle) return position;
    if (epoch != epoch_) {
      order_ = Permutation(order_.size(), options_.seed, static_cast<uint64_t>(epoch));
      epoch_ = epoch;
    }
    return order_(position);
  }

 private:
  const BatchOptions& options_;
  int64_t epoch_ = 0;
  Permutation order_;
};

void check_layout(const BatchOptions& options) {
  const BatchLayout& layout = options.layout;
  SPILLWAY_CHECK(options.seq >= 1, "seq is ", options.seq, "; allowed: >= 1");
  SPILLWAY_CHECK(layout.world >= 1 && layout.micro_batch >= 1 && layout.grad_accum >= 1, "world ",
                 layout.world, ", micro_batch ", layout.micro_batch, ", grad_accum ",
                 layout.grad_accum, ": each is at least 1");
  SPILLWAY_CHECK(layout.rank >= 0 && layout.rank < layout.world, "rank is ", layout.rank,
                 "; allowed: 0 to ", layout.world - 1);
}

}  // namespace

int64_t BatchLayout::global_sequences() const {
  return checked_mul(checked_mul(world, micro_batch), grad_accum);
}

BatchSource::BatchSource(TokenStream stream, const BatchOptions& options)
    : stream_(std::move(stream)), options_(options) {
  check_layout(options_);
  global_sequences_ = options_.layout.global_sequences();
  num_sequences_ = (stream_.num_tokens() - 1) / options_.seq;
  if (num_sequences_ < 1) {
    throw DataError(str("the data holds ", stream_.num_tokens(), " tokens; a sequence of data.seq ",
                        options_.seq, " needs ", options_.seq + 1));
  }
}

int64_t BatchSource::sequence_at(int64_t g) const {
  SPILLWAY_CHECK(g >= 0, "global sequence index ", g);
  return TrainingOrder(num_sequences_, options_)(g);
}

Batch BatchSource::batch(Context& ctx, int64_t step, int64_t micro_batch_index) const {
  SPILLWAY_CHECK(step >= 1, "step ", step, " (the first is 1)");
  const int64_t first = first_of_cell(step - 1, micro_batch_index);
  TrainingOrder order(num_sequences_, options_);
  Batch result = empty_batch(ctx);
  for (int64_t row = 0; row < options_.layout.micro_batch; ++row) {
    read_row(result, row, order(first + row));
  }
  return result;
}

int64_t BatchSource::num_eval_batches(int64_t wanted) const {
  SPILLWAY_CHECK(wanted >= 1, "evaluation of ", wanted, " batches");
  const int64_t available = num_sequences_ / global_sequences_;
  if (available < 1) {
    throw DataError(str("the validation data holds ", num_sequences_, " sequences of ",
                        options_.seq, " tokens; one global batch needs ", global_sequences_));
  }
  return std::min(wanted, available);
}

Batch BatchSource::eval_batch(Context& ctx, int64_t batch_index, int64_t micro_batch_index) const {
  const int64_t available = num_sequences_ / global_sequences_;
  if (batch_index < 0 || batch_index >= available) {
    throw DataError(str("validation batch ", batch_index, " of ", available, " full ones"));
  }
  const int64_t first = first_of_cell(batch_index, micro_batch_index);
  Batch result = empty_batch(ctx);
  for (int64_t row = 0; row < options_.layout.micro_batch; ++row) {
    read_row(result, row, first + row);
  }
  return result;
}

int64_t BatchSource::first_of_cell(int64_t batch_index, int64_t micro_batch_index) const {
  const BatchLayout& layout = options_.layout;
  SPILLWAY_CHECK(micro_batch_index >= 0 && micro_batch_index < layout.grad_accum, "micro-batch ",
                 micro_batch_index, " of ", layout.grad_accum);
  const int64_t cell = micro_batch_index * layout.world + layout.rank;
  return checked_mul(batch_index, global_sequences_) + cell * layout.micro_batch;
}

Batch BatchSource::empty_batch(Context& ctx) const {
  const Shape shape = {options_.layout.micro_batch, options_.seq};
  return {Tensor::empty(ctx, shape, DType::kI32, Purpose::kData),
          Tensor::empty(ctx, shape, DType::kI32, Purpose::kData)};
}

void BatchSource::read_row(Batch& batch, int64_t row, int64_t sequence) const {
  const int64_t begin = sequence * options_.seq;
  const int64_t at = row * options_.seq;
  stream_.read(begin, options_.seq, batch.tokens.data<int32_t>() + at);
  stream_.read(begin + 1, options_.seq, batch.targets.data<int32_t>() + at);
}

}  // namespace spillway::data
