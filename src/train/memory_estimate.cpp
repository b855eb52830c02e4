#include "spillway/train/memory_estimate.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "memory_model.h"
#include "spillway/capacity/controller.h"
#include "spillway/model/decoder.h"
#include "spillway/train/memory_saves.h"

namespace spillway::train {
namespace {

/// What a row of the table is called, in the order of `Purpose`.
constexpr std::array<const char*, kNumPurposes> kRows{
    "weights", "gradients", "optimizer", "activations", "receive buffers", "workspace", "data"};

memory::StepFacts step_facts(const config::Config& config, const MemoryOptions& options) {
  memory::StepFacts facts{.world = options.world, .threads = options.threads};
  const size_t moe_layers = config::decoder_config(config).moe_layers().size();
  if (moe_layers == 0) return facts;
  const std::vector<capacity::LayerFacts> layers(moe_layers, config::layer_facts(config));
  facts.capacity.assign(moe_layers, layers.front().worst_case_slots);
  if (!options.worst_case) {
    facts.capacity = capacity::Controller(config.capacity, layers, config.parallel.ep).capacities();
  }
  const int64_t ep = config.parallel.ep;
  const int64_t assignments = config::tokens_per_micro_batch(config) * config.moe.top_k;
  const int64_t stay = options.worst_case && ep > 1 ? 0 : assignments / ep;
  facts.rows_sent = assignments - stay;
  return facts;
}

void add_row(std::ostream& out, const std::string& name, const std::string& first,
             const std::string& worst) {
  constexpr int kNameWidth = 18, kSizeWidth = 28;
  out << "  " << std::left << std::setw(kNameWidth) << name << std::setw(kSizeWidth) << first
      << worst << "\n";
}

}  // namespace

std::string size_text(int64_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / 1048576.0 << " MiB ("
      << bytes << ")";
  return out.str();
}

int64_t capacity_sized_row_bytes(const config::Config& config) {
  const DType dtype = config::compute_dtype(config);
  const int64_t elements = 2 * config.model.hidden + 3 * config.moe.ffn;
  return elements * dtype_bytes(dtype) + dtype_bytes(accumulator_dtype(dtype));
}

MemoryEstimate estimate_memory(const config::Config& config, const MemoryOptions& options) {
  const memory::StepFacts facts = step_facts(config, options);
  memory::Ledger ledger;
  memory::walk_training(config, facts, ledger);
  MemoryEstimate estimate{.total = ledger.total_peak()};
  for (size_t i = 0; i < estimate.by_purpose.size(); ++i) {
    estimate.by_purpose[i] = ledger.peak(static_cast<Purpose>(i));
  }
  for (size_t i = 0; i < estimate.saved.size(); ++i) {
    estimate.saved[i] = ledger.saved_peak(ops::kHeldNames[i]);
  }
  for (const int64_t slots : facts.capacity) estimate.capacity = std::max(estimate.capacity, slots);
  return estimate;
}

std::string describe_model(const config::Config& config, int64_t world, int64_t threads) {
  const model::ParameterCounts counts = model::count_parameters(config::decoder_config(config));
  const MemoryEstimate first = estimate_memory(config, {.world = world, .threads = threads});
  const MemoryEstimate worst =
      estimate_memory(config, {.world = world, .threads = threads, .worst_case = true});
  std::ostringstream out;
  out << "world " << world << " = ep " << config.parallel.ep << " x dp "
      << world / config.parallel.ep << "\n"
      << "parameters: " << counts.total << " total, " << counts.active << " active a token\n"
      << "memory of a rank in training, the highest of all ranks (estimate, bytes in brackets):\n";
  add_row(out, "", "first step", "worst case");
  add_row(out, "capacity, slots", str(first.capacity), str(worst.capacity));
  for (size_t i = 0; i < kRows.size(); ++i) {
    add_row(out, kRows[i], size_text(first.by_purpose[i]), size_text(worst.by_purpose[i]));
  }
  add_row(out, "total", size_text(first.total), size_text(worst.total));
  out << "Each row is its own peak with " << threads << " threads a rank; the total is the peak of "
      << "the sum. Receive buffers: all that has\na row a slot. Not in it: MPI, the C library, the "
      << "program, metrics, mapped data files, blocks kept for reuse,\nevaluation, checkpoints."
      << describe_saves(config, {.world = world, .threads = threads});
  return out.str();
}

}  // namespace spillway::train
