#include "spillway/config/validate.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "errors.h"
#include "sizes.h"
#include "spillway/capacity/check.h"
#include "spillway/capacity/controller.h"
#include "spillway/capacity/policy_table.h"
#include "spillway/core/choice.h"
#include "spillway/core/math.h"
#include "spillway/ops/save_names.h"

namespace spillway::config {
namespace {

// Far above any model; bounds what loops over layers and what rounds up to the alignment.
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;

template <class Value>
void require(bool good, std::string_view path, const Value& value, std::string_view allowed) {
  if (!good) fail(path, str(value), allowed);
}
void at_least(int64_t least, std::string_view path, int64_t value) {
  require(value >= least, path, value, str("an integer of at least ", least));
}
void positive(std::string_view path, double value) {
  require(std::isfinite(value) && value > 0, path, value, "a number > 0");
}
void not_negative(std::string_view path, double value) {
  require(std::isfinite(value) && value >= 0, path, value, "a number >= 0");
}
void fraction_below_1(std::string_view path, double value) {
  require(value >= 0 && value < 1, path, value, "a number in [0, 1)");
}

void check_run(const RunConfig& run, const ValidateOptions& options) {
  require(!run.dir.empty(), "run.dir", "\"\"", "the path of a directory");
  at_least(0, "run.seed", run.seed);
  require(run.device != DeviceChoice::kCuda || options.accept_cuda, "run.device", "\"cuda\"",
          "auto, cpu (this build has no CUDA; --validate takes cuda)");
}

// Ids of a text are known, those of a token file are held against the size as they are read.
void check_vocabulary(int64_t vocab_size, data::TokenFormat format) {
  const bool is_text = format == data::TokenFormat::kText;
  require(vocab_size >= (is_text ? data::kTextVocabSize : 1), "model.vocab_size", vocab_size,
          is_text ? str("at least ", data::kTextVocabSize, " for text (256 bytes, begin, end)")
                  : std::string("at least 1"));
}

void check_model(const model::ModelConfig& model) {
  at_least(1, "model.hidden", model.hidden);
  require(model.layers >= 1 && model.layers <= kMaxLayers, "model.layers", model.layers,
          str("1 to ", kMaxLayers));
  at_least(1, "model.heads", model.heads);
  require(model.kv_heads >= 1 && model.heads % model.kv_heads == 0, "model.kv_heads",
          model.kv_heads, str("a divisor of model.heads = ", model.heads));
  at_least(0, "model.head_dim", model.head_dim);
  if (model.head_dim == 0) {
    require(model.hidden % model.heads == 0 && model.hidden / model.heads % 2 == 0, "model.hidden",
            model.hidden,
            str("an even multiple of model.heads = ", model.heads, ", or a model.head_dim > 0"));
  }
  require(model.head_dim % 2 == 0, "model.head_dim", model.head_dim,
          "an even number, or 0 for hidden / heads");
  at_least(1, "model.max_seq", model.max_seq);
  positive("model.rope_theta", model.rope_theta);
  positive("model.norm_eps", model.norm_eps);
  require(model.first_dense_layers >= 0 && model.first_dense_layers <= model.layers,
          "model.first_dense_layers", model.first_dense_layers,
          str("0 to model.layers = ", model.layers));
  at_least(1, "model.dense_ffn", model.dense_ffn);
}

void check_router(const moe::MoeConfig& moe) {
  const moe::RouterConfig& router = moe.router;
  positive("moe.router.scale", router.scale);
  not_negative("moe.router.aux_coef", router.aux_coef);
  not_negative("moe.router.z_coef", router.z_coef);
  not_negative("moe.router.bias_update_rate", router.bias_update_rate);
  at_least(0, "moe.router.groups", router.groups);
  const bool grouped = router.groups > 1;
  if (grouped) {
    require(moe.experts % router.groups == 0, "moe.router.groups", router.groups,
            str("0 and 1 (off), or a divisor of moe.experts = ", moe.experts));
    require(router.topk_groups >= 1 && router.topk_groups <= router.groups,
            "moe.router.topk_groups", router.topk_groups,
            str("1 to moe.router.groups = ", router.groups));
    const int64_t size = moe.experts / router.groups;
    require(moe.experts == 0 || router.topk_groups * size >= moe.top_k, "moe.router.topk_groups",
            router.topk_groups,
            str("at least ", ceil_div(moe.top_k, std::max<int64_t>(size, 1)), " groups of ", size,
                " experts, to choose moe.top_k = ", moe.top_k, " from"));
  } else {
    require(router.topk_groups == 0 || router.topk_groups == 1, "moe.router.topk_groups",
            router.topk_groups, str("0 or 1 with moe.router.groups = ", router.groups, " (off)"));
  }
  // Only the chosen experts would have a score to compare.
  const bool after_topk =
      router.score == moe::ScoreFunction::kSoftmax && !router.softmax_before_topk;
  require(!after_topk || (!grouped && router.bias_update_rate == 0.0),
          "moe.router.softmax_before_topk", "false",
          str("true with ", grouped ? "moe.router.groups > 1" : "moe.router.bias_update_rate > 0"));
}

void check_moe(const moe::MoeConfig& moe) {
  at_least(0, "moe.experts", moe.experts);
  if (moe.experts > 0) {
    require(moe.top_k >= 1 && moe.top_k <= moe.experts, "moe.top_k", moe.top_k,
            str("1 to moe.experts = ", moe.experts));
  }
  at_least(1, "moe.ffn", moe.ffn);
  at_least(0, "moe.shared_experts", moe.shared_experts);
  require(is_power_of_two(moe.alignment) && moe.alignment <= kMaxAlignment, "moe.alignment",
          moe.alignment, str("a power of two from 1 to ", kMaxAlignment));
  check_router(moe);
}

void check_parallel(const Config& config, int64_t world_size) {
  const int64_t ep = config.parallel.ep;
  require(ep >= 1 && world_size % ep == 0, "parallel.ep", ep,
          str("a divisor of the world size ", world_size));
  require(config.moe.experts % ep == 0, "parallel.ep", ep,
          str("a divisor of moe.experts = ", config.moe.experts));
  require(config.parallel.transport != Transport::kSelf || world_size == 1, "parallel.transport",
          "\"self\"", str("auto, mpi in a world of ", world_size, " ranks (self: 1 rank)"));
  const int64_t zero = config.parallel.zero;
  require(zero == 0 || zero == 1, "parallel.zero", zero, "0, 1");
  at_least(0, "ep.drop_seed", config.ep.drop_seed);
}

void check_capacity(const Config& config) {
  const auto problems = capacity::check(config.capacity, config.moe.alignment);
  if (problems.empty()) return;
  const std::string& policy = config.capacity.policy;
  if (capacity::find_policy(policy) == nullptr) {
    std::vector<std::string> names;
    for (const capacity::PolicyEntry& known : capacity::policy_table()) {
      names.emplace_back(known.name);
    }
    // Without one that is near, the text may say that the policy is not in this version.
    if (!hint(policy, names).empty()) {
      fail_name("capacity.policy", policy, in_quotes(policy), names);
    }
  }
  throw ConfigError(one_line(str(problems.front().path, " ", problems.front().text)));
}

void check_recompute(const model::RecomputeConfig& recompute) {
  for (size_t i = 0; i < recompute.save.size(); ++i) {
    const std::string& name = recompute.save[i];
    const std::vector<std::string> known(ops::kSaveNames.begin(), ops::kSaveNames.end());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail_name(str("recompute.save[", i, "]"), name, in_quotes(name), known);
  }
}

void check_optim(const optim::OptimConfig& optim) {
  positive("optim.lr", optim.lr);
  require(optim.min_lr >= 0 && optim.min_lr <= optim.lr, "optim.min_lr", optim.min_lr,
          str("0 to optim.lr = ", optim.lr));
  at_least(0, "optim.warmup_steps", optim.warmup_steps);
  fraction_below_1("optim.beta1", optim.beta1);
  fraction_below_1("optim.beta2", optim.beta2);
  positive("optim.eps", optim.eps);
  not_negative("optim.weight_decay", optim.weight_decay);
  not_negative("optim.clip", optim.clip);
}

void check_train(const TrainConfig& train) {
  at_least(1, "train.steps", train.steps);
  at_least(1, "train.micro_batch", train.micro_batch);
  at_least(1, "train.grad_accum", train.grad_accum);
  at_least(0, "train.eval_every", train.eval_every);
  at_least(1, "train.eval_steps", train.eval_steps);
  at_least(0, "train.check_replicas", train.check_replicas);
}

void check_output(const CheckpointConfig& checkpoint, const LogConfig& log) {
  at_least(0, "checkpoint.every", checkpoint.every);
  at_least(1, "checkpoint.keep", checkpoint.keep);
  require(!checkpoint.resume.empty(), "checkpoint.resume", "\"\"", "none, auto or a directory");
  at_least(0, "log.every", log.every);
  const std::string& metrics = log.metrics;
  const bool is_file_name = !metrics.empty() && metrics.find('/') == std::string::npos &&
                            metrics != "." && metrics != "..";
  // In the place of the mark `fatal` it would silence every rank that fails.
  const bool is_free = metrics != "fatal" && metrics != "checkpoints";
  require(is_file_name && is_free, "log.metrics", in_quotes(metrics),
          "the name of a file in the run directory, without /, not fatal or checkpoints");
}

// Nothing holds a capacity below the worst case once it follows the demand, so `max_bytes` is a
// promise only if the largest capacity that the run can reach fits.
void check_max_bytes(const Config& config) {
  const capacity::CapacityConfig& capacity = config.capacity;
  const auto num_layers = static_cast<int64_t>(decoder_config(config).moe_layers().size());
  if (capacity.max_bytes == 0 || num_layers == 0) return;
  const capacity::LayerFacts facts = layer_facts(config);
  const bool follows_demand = capacity::policy_named(capacity.policy).adaptive ||
                              capacity.on_overflow == capacity::OnOverflow::kGrow;
  const int64_t slots =
      follows_demand
          ? facts.worst_case_slots
          : capacity::Controller(capacity, {facts}, config.parallel.ep).capacities().front();
  const int64_t needed = num_layers * slots * receive_row_bytes(config);
  require(needed <= capacity.max_bytes, "capacity.max_bytes", capacity.max_bytes,
          str("0 (no limit) or at least ", needed, " (", num_layers, " layers of up to ", slots,
              " slots of ", receive_row_bytes(config), " bytes)"));
}

void warn_warmup(const Config& config, std::vector<std::string>& warnings) {
  const int64_t steps = config.train.steps;
  if (config.optim.warmup_steps >= steps) {
    warnings.push_back(str("optim.warmup_steps is ", config.optim.warmup_steps,
                           ", not below train.steps = ", steps,
                           ": the learning rate never reaches optim.lr before the last step"));
  }
  const capacity::CapacityConfig& capacity = config.capacity;
  if (capacity::policy_named(capacity.policy).adaptive && capacity.warmup_steps >= steps &&
      !capacity::pinned_to_worst_case(capacity, config.parallel.ep)) {
    warnings.push_back(str("capacity.warmup_steps is ", capacity.warmup_steps,
                           ", not below train.steps = ", steps, ": policy \"", capacity.policy,
                           "\" never acts"));
  }
}

/// Why no assignment of this run is ever dropped; empty when one may be.
std::string why_nothing_drops(const Config& config) {
  const capacity::CapacityConfig& capacity = config.capacity;
  if (capacity.policy == "worst_case" ||
      capacity::pinned_to_worst_case(capacity, config.parallel.ep)) {
    return "buffers hold any routing";
  }
  const bool drops = capacity.on_overflow == capacity::OnOverflow::kDrop ||
                     capacity.on_overflow == capacity::OnOverflow::kSkip ||
                     capacity.eval == capacity::EvalCapacity::kSame;
  return drops ? "" : "capacity.on_overflow drops nothing";
}

void warn_drops(const Config& config, std::vector<std::string>& warnings) {
  const EpOptions& ep = config.ep;
  const std::string why = why_nothing_drops(config);
  const std::string order =
      str("ep.drop_order is \"", choice_name(plan::kDropOrderChoices, ep.drop_order), "\"");
  if (ep.drop_order != plan::DropOrder::kTail && !why.empty()) {
    warnings.push_back(str(order, ", without effect: ", why));
  }
  // Nothing dropped is no reason to be without effect: the sum of all is a constant in backward.
  if (ep.renormalize_kept && config.moe.top_k == 1) {
    warnings.emplace_back(
        "ep.renormalize_kept is true at moe.top_k = 1: the weight of the one expert is a constant "
        "in backward, so the router learns from auxiliary terms only");
  } else if (ep.renormalize_kept && !why.empty()) {
    warnings.push_back(str("ep.renormalize_kept is true, without effect on any weight: ", why,
                           "; their gradients are those of weights with a constant sum"));
  }
  if (ep.drop_seed != 0 && ep.drop_order != plan::DropOrder::kRandom) {
    warnings.push_back(
        str("ep.drop_seed is ", ep.drop_seed, ", without effect: ", order, ", not \"random\""));
  }
}

void warn_recompute(const Config& config, std::vector<std::string>& warnings) {
  const model::RecomputeConfig& recompute = config.recompute;
  const std::vector<std::string>& save = recompute.save;
  if (recompute.region == model::RecomputeRegion::kNone) {
    if (!save.empty()) {
      warnings.emplace_back(
          "recompute.save is without effect: recompute.region is \"none\", so nothing is computed "
          "again");
    }
    return;
  }
  if (recompute.region != model::RecomputeRegion::kMoe) return;
  if (decoder_config(config).moe_layers().empty()) {
    warnings.emplace_back(
        "recompute.region is \"moe\", without effect: no layer has experts; \"layer\" is for all "
        "layers");
  } else if (std::find(save.begin(), save.end(), ops::kSaveAttention) != save.end()) {
    warnings.emplace_back(
        "recompute.save names attention, without effect with recompute.region \"moe\": attention "
        "is "
        "outside of it and kept anyway");
  }
}

std::vector<std::string> find_warnings(const Config& config) {
  std::vector<std::string> warnings;
  if (!decoder_config(config).moe_layers().empty()) {
    if (config.moe.top_k == 1 && config.moe.router.normalize_topk) {
      warnings.emplace_back(
          "moe.router.normalize_topk is true, without effect at moe.top_k = 1: the weight of the "
          "one expert is not divided by itself");
    }
    if (config.moe.router.score != moe::ScoreFunction::kSoftmax &&
        !config.moe.router.softmax_before_topk) {
      warnings.push_back(
          str("moe.router.softmax_before_topk is false, without effect with moe.router.score \"",
              choice_name(moe::kScoreChoices, config.moe.router.score), "\""));
    }
    for (const capacity::Problem& problem : capacity::check_warnings(
             config.capacity, layer_facts(config).balanced_slots, config.parallel.ep)) {
      warnings.push_back(str(problem.path, " ", problem.text));
    }
    warn_drops(config, warnings);
  }
  warn_recompute(config, warnings);
  warn_warmup(config, warnings);
  return warnings;
}

}  // namespace

std::vector<std::string> validate(const Config& config, int64_t world_size,
                                  const ValidateOptions& options) {
  SPILLWAY_CHECK(world_size >= 1, "world_size is ", world_size, "; allowed: >= 1");
  check_run(config.run, options);
  check_vocabulary(config.model.vocab_size, config.data.format);
  check_model(config.model);
  check_moe(config.moe);
  check_parallel(config, world_size);
  check_capacity(config);
  check_recompute(config.recompute);
  data::validate(config.data);
  require(config.data.seq <= config.model.max_seq, "data.seq", config.data.seq,
          str("1 to model.max_seq = ", config.model.max_seq));
  check_optim(config.optim);
  check_train(config.train);
  check_output(config.checkpoint, config.log);
  check_sizes(config, world_size);
  check_max_bytes(config);
  return find_warnings(config);
}

}  // namespace spillway::config
