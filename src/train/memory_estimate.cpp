#include "spillway/train/memory_estimate.h"

#include <iomanip>
#include <sstream>

#include "spillway/capacity/controller.h"
#include "spillway/model/decoder.h"
#include "spillway/ops/save_names.h"

namespace spillway::train {
namespace {

/// Elements that the tape keeps for one token of one layer, rows of C apart: inputs of the norms
/// and products, q, k, v before and after norm and rotation, the attention's result.
int64_t layer_elements(const config::Config& config, bool experts) {
  const model::ModelConfig& m = config.model;
  const int64_t head_dim = config::decoder_config(config).head_dim();
  const int64_t q = m.heads * head_dim, kv = m.kv_heads * head_dim;
  const int64_t stages = m.qk_norm == model::QkNorm::kNone ? 1 : 2;
  const int64_t attention = stages * (q + kv) + kv + q;
  const int64_t dense = experts ? config.moe.shared_experts * config.moe.ffn : m.dense_ffn;
  return 4 * m.hidden + attention + 3 * dense;
}

/// Bytes of one slot that the tape keeps of a MoE layer until its backward begins.
int64_t kept_row_bytes(const config::Config& config) {
  if (config.recompute.region == model::RecomputeRegion::kNone) {
    return capacity_sized_row_bytes(config);
  }
  const DType dtype = config::compute_dtype(config);
  int64_t bytes = 0;
  for (const std::string& name : config.recompute.save) {
    if (name == ops::kSaveDispatch) {
      bytes += config.model.hidden * dtype_bytes(dtype) + dtype_bytes(accumulator_dtype(dtype));
    }
    if (name == ops::kSaveExpertUp) bytes += 2 * config.moe.ffn * dtype_bytes(dtype);
    if (name == ops::kSaveExpertAct) bytes += config.moe.ffn * dtype_bytes(dtype);
  }
  return bytes;
}

std::string mib(int64_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / 1048576.0 << " MiB";
  return out.str();
}

}  // namespace

int64_t capacity_sized_row_bytes(const config::Config& config) {
  const DType dtype = config::compute_dtype(config);
  const int64_t elements = 2 * config.model.hidden + 3 * config.moe.ffn;
  return elements * dtype_bytes(dtype) + dtype_bytes(accumulator_dtype(dtype));
}

MemoryEstimate estimate_memory(const config::Config& config) {
  const DType dtype = config::compute_dtype(config);
  const model::DecoderConfig decoder = config::decoder_config(config);
  MemoryEstimate estimate;
  int64_t parameters = 0;
  for (const nn::ParameterSpec& spec : model::parameter_specs(decoder, dtype)) {
    parameters += spec.local_shape(config.parallel.ep).numel();
  }
  const int64_t acc = dtype_bytes(accumulator_dtype(dtype));
  estimate.weights = parameters * dtype_bytes(dtype);
  estimate.gradients = parameters * acc;
  // Two moments, and a master copy where the weights are not fp32 themselves.
  estimate.optimizer = parameters * 4 * (dtype == DType::kF32 ? 2 : 3);

  const int64_t tokens = config::tokens_per_micro_batch(config);
  const auto moe_layers = static_cast<int64_t>(decoder.moe_layers().size());
  const int64_t kept = config.recompute.region == model::RecomputeRegion::kNone
                           ? moe_layers * layer_elements(config, true) +
                                 (config.model.layers - moe_layers) * layer_elements(config, false)
                           : config.model.layers * config.model.hidden;
  estimate.activations =
      tokens * (kept * dtype_bytes(dtype) + moe_layers * 2 * config.moe.experts * acc +
                2 * config.model.hidden * dtype_bytes(dtype) + 2 * config.model.vocab_size * acc);
  if (moe_layers > 0) {
    const capacity::LayerFacts facts = config::layer_facts(config);
    const capacity::Controller controller(config.capacity, {facts}, config.parallel.ep);
    // All rows of one layer are there while it runs; of the others what is kept.
    const int64_t kept_row = kept_row_bytes(config);
    const int64_t row = kept_row * (moe_layers - 1) + capacity_sized_row_bytes(config);
    estimate.receive_chosen = row * controller.capacities().front();
    estimate.receive_worst_case = row * facts.worst_case_slots;
  }
  return estimate;
}

std::string describe_model(const config::Config& config, int64_t world) {
  const model::ParameterCounts counts = model::count_parameters(config::decoder_config(config));
  const MemoryEstimate m = estimate_memory(config);
  std::ostringstream out;
  out << "world " << world << " = ep " << config.parallel.ep << " x dp "
      << world / config.parallel.ep << "\n"
      << "parameters: " << counts.total << " total, " << counts.active << " active a token\n"
      << "memory a rank (estimate):\n"
      << "  weights                        " << mib(m.weights) << "\n"
      << "  gradients                      " << mib(m.gradients) << "\n"
      << "  optimizer                      " << mib(m.optimizer) << "\n"
      << "  activations                    " << mib(m.activations) << "\n"
      << "  rows of capacity, first step   " << mib(m.receive_chosen) << "\n"
      << "  rows of capacity, worst case   " << mib(m.receive_worst_case) << "\n"
      << "  total, first step              "
      << mib(m.weights + m.gradients + m.optimizer + m.activations + m.receive_chosen);
  return out.str();
}

}  // namespace spillway::train
