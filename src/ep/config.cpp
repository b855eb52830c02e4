#include "spillway/ep/config.h"

#include <cmath>
#include <limits>

#include "config_fields.h"
#include "spillway/core/choice.h"
#include "spillway/core/math.h"
#include "spillway/plan/sizing.h"

namespace spillway::ep {
namespace {

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream out;
  out.precision(std::numeric_limits<double>::max_digits10);
  out << value;
  return out.str();
}

/// Throws ConfigError: the field, its value, what is allowed.
template <typename T>
void require(bool condition, const std::string& field, const T& value, const std::string& allowed) {
  if (!condition) {
    throw ConfigError(str("EpConfig.", field, " is ", text_of(value), "; allowed: ", allowed));
  }
}

// A row of row_of is below max_tokens_per_rank * top_k rows sent + the slots of the buffer.
constexpr int64_t kMostIndices = std::numeric_limits<int32_t>::max();

std::string element(const std::string& list, size_t i) { return str(list, "[", i, "]"); }

void validate_capacities(const EpConfig& config) {
  const std::vector<int64_t>& capacities = config.recv_capacity_per_rank;
  require(!capacities.empty(), "recv_capacity_per_rank.size", capacities.size(),
          "at least one layer");
  for (size_t layer = 0; layer < capacities.size(); ++layer) {
    const int64_t capacity = capacities[layer];
    require(capacity >= config.alignment && capacity % config.alignment == 0,
            element("recv_capacity_per_rank", layer), capacity,
            str("a positive multiple of alignment = ", config.alignment, " slots"));
  }
  require(config.layer_ids.empty() || config.layer_ids.size() == capacities.size(),
          "layer_ids.size", config.layer_ids.size(),
          str("0, or one a layer = ", capacities.size()));
}

// In an order in which no product leaves 64 bits.
void validate_index_bounds(const EpConfig& config) {
  constexpr const char* kWhy = ": the maps of a routing handle hold 31-bit indices";
  require(config.num_experts < kMostIndices, "num_experts", config.num_experts,
          str("below ", kMostIndices, ": expert ids are i32"));
  require(config.max_tokens_per_rank < kMostIndices / config.top_k, "max_tokens_per_rank",
          config.max_tokens_per_rank,
          str("below ", kMostIndices / config.top_k, " at top_k = ", config.top_k, kWhy));
  const int64_t most = most_capacity(config);
  require(config.alignment <= most, "alignment", config.alignment,
          str("at most ", most, " slots", kWhy));
  for (size_t layer = 0; layer < config.recv_capacity_per_rank.size(); ++layer) {
    require(config.recv_capacity_per_rank[layer] <= most, element("recv_capacity_per_rank", layer),
            config.recv_capacity_per_rank[layer], str("at most ", most, " slots", kWhy));
  }
  const std::string allowed =
      str("what at most ", most, " slots hold when all of the group send what they can", kWhy);
  require(config.ep <= kMostIndices / config.max_tokens_per_rank, "ep * max_tokens_per_rank",
          str(config.ep, " * ", config.max_tokens_per_rank), allowed);
  const int64_t worst_case =
      plan::worst_case_slots(config.ep * config.max_tokens_per_rank, config.top_k,
                             config.num_experts / config.ep, config.alignment);
  require(worst_case <= most, "ep * max_tokens_per_rank",
          str(config.ep * config.max_tokens_per_rank, " (worst case ", worst_case, " slots)"),
          allowed);
}

}  // namespace

int64_t most_capacity(const EpConfig& config) {
  return kMostIndices - config.max_tokens_per_rank * config.top_k;
}

std::vector<ConfigField> config_fields(const EpConfig& config) {
  // Taken apart so that a field added to the struct and forgotten here does not compile.
  const auto& [ep, num_experts, hidden, top_k, alignment, dtype, max_tokens_per_rank, capacities,
               drop_on_overflow, grow_on_overflow, grow_margin, drop_order, drop_seed,
               renormalize_kept, poison, capacity_key, layer_ids] = config;
  std::vector<ConfigField> fields;
  const auto add = [&fields](const std::string& name, const auto& value) {
    fields.push_back({name, text_of(value)});
  };
  const auto add_list = [&](const std::string& name, const std::vector<int64_t>& values) {
    add(name + ".size", values.size());
    for (size_t i = 0; i < values.size(); ++i) add(element(name, i), values[i]);
  };
  add("ep", ep);
  add("num_experts", num_experts);
  add("hidden", hidden);
  add("top_k", top_k);
  add("alignment", alignment);
  add("dtype", dtype_name(dtype));
  add("max_tokens_per_rank", max_tokens_per_rank);
  add_list("recv_capacity_per_rank", capacities);
  add("drop_on_overflow", drop_on_overflow ? "true" : "false");
  add("grow_on_overflow", grow_on_overflow ? "true" : "false");
  add("grow_margin", grow_margin);
  add("drop_order", choice_name(plan::kDropOrderChoices, drop_order));
  add("drop_seed", drop_seed);
  add("renormalize_kept", renormalize_kept ? "true" : "false");
  add("poison", poison ? "true" : "false");
  add("capacity_key", capacity_key);
  add_list("layer_ids", layer_ids);
  return fields;
}

void validate(const EpConfig& config) {
  require(config.ep >= 1, "ep", config.ep, "at least 1");
  require(config.num_experts >= 1 && config.num_experts % config.ep == 0, "num_experts",
          config.num_experts, str("a positive multiple of ep = ", config.ep));
  require(config.hidden >= 1, "hidden", config.hidden, "at least 1");
  require(config.top_k >= 1 && config.top_k <= config.num_experts, "top_k", config.top_k,
          str("1 to num_experts = ", config.num_experts));
  require(is_power_of_two(config.alignment), "alignment", config.alignment, "a power of two");
  require(
      config.dtype == DType::kF32 || config.dtype == DType::kF64 || config.dtype == DType::kBF16,
      "dtype", dtype_name(config.dtype), "f32, f64, bf16");
  require(config.max_tokens_per_rank >= 1, "max_tokens_per_rank", config.max_tokens_per_rank,
          "at least 1");
  validate_capacities(config);
  validate_index_bounds(config);
  require(!(config.drop_on_overflow && config.grow_on_overflow), "grow_on_overflow", "true",
          "false when drop_on_overflow is true");
  require(std::isfinite(config.grow_margin) && config.grow_margin >= 0.0, "grow_margin",
          config.grow_margin, "a finite fraction of demand, at least 0");
}

}  // namespace spillway::ep
