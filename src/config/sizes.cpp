#include "sizes.h"

#include <algorithm>
#include <string_view>

#include "errors.h"

namespace spillway::config {
namespace {

// 2^62: half of what int64 holds, far more than the rounding of the products below.
constexpr double kLargest = 4611686018427387904.0;
// A parameter takes a weight, a gradient and two moments of 4 bytes, and a bf16 copy.
constexpr double kBytesPerParameter = 18;
// The widest element of an activation.
constexpr double kElementBytes = 8;

double real(int64_t value) { return static_cast<double>(value); }

void fits(double size, std::string_view path, int64_t value, std::string_view meaning) {
  if (size < kLargest) return;
  fail(path, str(value), str("what keeps sizes below 2^62 (here ", meaning, " = ", size, ")"));
}

double parameter_bytes(const Config& config) {
  const model::ModelConfig& model = config.model;
  const double hidden = real(model.hidden);
  const double head_dim = real(decoder_config(config).head_dim());
  const double attention = 2 * hidden * head_dim * (real(model.heads) + real(model.kv_heads));
  const double expert = 3 * hidden * real(config.moe.ffn);
  const double experts = (real(config.moe.experts) + real(config.moe.shared_experts)) * expert +
                         hidden * real(config.moe.experts);
  const double dense = 3 * hidden * real(model.dense_ffn);
  return kBytesPerParameter *
         (real(model.layers) * (attention + experts + dense) + 2 * hidden * real(model.vocab_size));
}

// At least the worst case and every intermediate result of its formula (plan/sizing.h).
double slots_bound(const Config& config) {
  const double num_tokens =
      real(config.parallel.ep) * real(config.train.micro_batch) * real(config.data.seq);
  const double experts_per_rank =
      std::max(1.0, real(config.moe.experts) / real(config.parallel.ep));
  const double alignment = real(config.moe.alignment);
  return (num_tokens + alignment) * experts_per_rank + num_tokens * real(config.moe.top_k) +
         alignment * experts_per_rank;
}

}  // namespace

int64_t receive_row_bytes(const Config& config) {
  return config.model.hidden * dtype_bytes(compute_dtype(config)) + dtype_bytes(DType::kF32);
}

void check_sizes(const Config& config, int64_t world_size) {
  const TrainConfig& train = config.train;
  const model::ModelConfig& model = config.model;
  fits(parameter_bytes(config), "model.hidden", model.hidden, "bytes of all parameters");
  fits(kElementBytes * real(model.max_seq) * real(decoder_config(config).head_dim()),
       "model.max_seq", model.max_seq, "bytes of the rotary table");
  const double tokens = real(train.micro_batch) * real(config.data.seq);
  fits(kElementBytes * tokens * real(model.vocab_size), "train.micro_batch", train.micro_batch,
       "bytes of the logits of a rank");
  const double widest =
      std::max({real(model.hidden), 2 * real(config.moe.ffn), 2 * real(model.dense_ffn)});
  fits(kElementBytes * slots_bound(config) * widest * real(model.layers), "train.micro_batch",
       train.micro_batch, "bytes of the worst-case receive buffers");
  fits(tokens * real(train.grad_accum) * real(world_size) * real(train.steps), "train.steps",
       train.steps, "tokens of the run");
}

}  // namespace spillway::config
