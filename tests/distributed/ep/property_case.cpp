#include "distributed/ep/property_case.h"

#include "spillway/core/choice.h"

namespace spillway::ep::test {
namespace {

constexpr int64_t kMostExperts = 64;
constexpr int64_t kMostChoices = 8;
// Streams of a seed.
constexpr uint64_t kShapes = 0;
constexpr uint64_t kCapacities = 1;
constexpr uint64_t kFirstRank = 16;

template <typename T>
T pick(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[rng.below(values.size())];
}

int64_t between(Rng& rng, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(rng.below(static_cast<uint64_t>(high - low + 1)));
}

std::vector<int64_t> draw_tokens(Rng& rng, int world_size, int64_t most) {
  std::vector<int64_t> num_tokens;
  const uint64_t kind = rng.below(8);
  for (int rank = 0; rank < world_size; ++rank) {
    int64_t here = between(rng, 0, most);
    if (kind == 0) here = most;                           // equal everywhere
    if (kind == 1 && rng.below(2) == 0) here = 0;         // some ranks have none
    if (kind == 2 && rng.below(3) != 0) here = most / 8;  // one or two have most
    if (kind == 3) here = most - rank % (most + 1);       // another T on every rank
    num_tokens.push_back(std::max<int64_t>(0, here));
  }
  return num_tokens;
}

// Integers, so that a gate times a token's value is exact in the dtype of the rows.
double draw_gate(Rng& rng, uint64_t kind, DType rows) {
  switch (kind) {
    case 0:
      return static_cast<double>(between(rng, 1, 2));
    case 1:
      return static_cast<double>(between(rng, 1, 15));
    case 2:
      return (rng.below(2) == 0 ? 1.0 : -1.0) * static_cast<double>(between(rng, 0, 4));  // -0 too
    default:
      // Neighbours that bf16 rounds to one value, up, down and to even.
      return static_cast<double>(rows == DType::kBF16 ? between(rng, 1, 7)
                                                      : between(rng, 255, 266));
  }
}

}  // namespace

PropertyCase draw_case(uint64_t seed, int world_size, plan::DropOrder order) {
  Rng rng(seed, kShapes);
  PropertyCase c{.seed = seed};
  EpConfig& config = c.config;
  std::vector<int> divisors;
  for (int ep = 1; ep <= world_size; ++ep) {
    if (world_size % ep == 0) divisors.push_back(ep);
  }
  // The larger groups more often: more can go wrong there.
  config.ep = std::max(divisors[rng.below(divisors.size())], divisors[rng.below(divisors.size())]);
  const int64_t most_local = std::min(kMostExperts / config.ep, pick<int64_t>(rng, {2, 8, 64}));
  config.num_experts = config.ep * between(rng, 1, most_local);
  config.top_k = between(rng, 1, std::min(kMostChoices, config.num_experts));
  if (rng.below(10) == 0) config.top_k = std::min(kMostChoices, config.num_experts);
  config.hidden = between(rng, 3, 9);  // three digits of base 16 name a token
  config.alignment = pick<int64_t>(rng, {1, 1, 8, 8, 128});
  config.dtype = pick(rng, {DType::kF32, DType::kBF16});
  const int64_t most = pick<int64_t>(rng, {5, 20, 40, 40, 100, 30, 60, kMostTokens});
  c.num_tokens = draw_tokens(rng, world_size, between(rng, (most + 1) / 2, most));
  config.max_tokens_per_rank =
      std::max<int64_t>(1, *std::max_element(c.num_tokens.begin(), c.num_tokens.end()));
  config.recv_capacity_per_rank.resize(1 + rng.below(3));
  config.drop_order = order;
  config.drop_seed = rng.next();
  config.poison = rng.below(2) == 0;
  c.call = {
      .layer = between(rng, 0, static_cast<int64_t>(config.recv_capacity_per_rank.size()) - 1),
      .micro_batch = between(rng, 0, 4),
      .step = between(rng, 0, 1000)};
  c.gate_dtype = pick(rng, {DType::kF32, DType::kF32, DType::kF64});
  c.fused = rng.below(2) == 0;
  c.second = pick(
      rng, {SecondPass::kNone, SecondPass::kNone, SecondPass::kNone, SecondPass::kFail,
            SecondPass::kLossless, SecondPass::kLossless, SecondPass::kGrow, SecondPass::kGrow});
  config.grow_on_overflow = c.second == SecondPass::kGrow;
  config.grow_margin = config.grow_on_overflow ? pick(rng, {0.0, 0.0, 0.3}) : 0.0;
  config.drop_on_overflow = c.second != SecondPass::kGrow && c.second != SecondPass::kFail;
  return c;
}

std::vector<Choice> draw_choices(const PropertyCase& c, int world_rank) {
  // Kind of routing: of the case, not of the rank.
  Rng of_case(c.seed, kFirstRank - 1);
  const int skew = pick(of_case, {1, 1, 3, 8});  // expert E * u^skew
  const auto rotation = static_cast<int64_t>(
      of_case.below(2) * of_case.below(static_cast<uint64_t>(c.config.num_experts)));
  const uint64_t holes = pick<uint64_t>(of_case, {0, 0, 0, 4});  // one of so many entries is -1
  const uint64_t gates = of_case.below(4);
  Rng rng(c.seed, kFirstRank + static_cast<uint64_t>(world_rank));
  std::vector<Choice> choices;
  std::vector<bool> taken;
  for (int64_t t = 0; t < c.num_tokens[static_cast<size_t>(world_rank)]; ++t) {
    taken.assign(static_cast<size_t>(c.config.num_experts), false);
    const bool nothing = holes > 0 && rng.below(8) == 0;
    for (int64_t k = 0; k < c.config.top_k; ++k) {
      const double u = std::pow(rng.uniform(), skew);
      auto expert = static_cast<int64_t>(u * static_cast<double>(c.config.num_experts));
      expert = (expert + rotation) % c.config.num_experts;
      while (taken[static_cast<size_t>(expert)]) expert = (expert + 1) % c.config.num_experts;
      taken[static_cast<size_t>(expert)] = true;
      const bool none = nothing || (holes > 0 && rng.below(holes) == 0);
      choices.push_back({none ? -1 : expert, draw_gate(rng, gates, c.config.dtype)});
    }
  }
  return choices;
}

void draw_capacities(PropertyCase& c, int64_t highest_demand) {
  Rng rng(c.seed, kCapacities);
  const int64_t alignment = c.config.alignment;
  for (int64_t& capacity : c.config.recv_capacity_per_rank) {
    capacity = alignment * between(rng, 1, 9);
  }
  int64_t& capacity = c.config.recv_capacity_per_rank[static_cast<size_t>(c.call.layer)];
  const uint64_t kind = rng.below(20);
  if (kind < 14 && highest_demand > alignment) {
    capacity = alignment * between(rng, 1, highest_demand / alignment - 1);
    if (kind == 0) capacity = highest_demand - alignment;
    if (kind == 1) capacity = alignment;
  } else if (kind < 17) {
    capacity = std::max(alignment, highest_demand);
  } else {
    capacity = std::max(alignment, highest_demand) + alignment * between(rng, 0, 5);
  }
}

std::string describe(const PropertyCase& c) {
  const EpConfig& config = c.config;
  std::string tokens;
  for (const int64_t here : c.num_tokens) tokens += str(tokens.empty() ? "" : ", ", here);
  return str("seed ", c.seed, ": ep ", config.ep, " E ", config.num_experts, " K ", config.top_k,
             " H ", config.hidden, " A ", config.alignment, " ", dtype_name(config.dtype),
             " order ", choice_name(plan::kDropOrderChoices, config.drop_order), " C ",
             config.recv_capacity_per_rank[static_cast<size_t>(c.call.layer)], " layer ",
             c.call.layer, " micro_batch ", c.call.micro_batch, " step ", c.call.step,
             c.fused ? " fused" : " split", " T [", tokens, "]");
}

Batch batch_of(World& w, const PropertyCase& c, const std::vector<Choice>& choices) {
  const EpConfig& config = c.config;
  const int64_t num_tokens = static_cast<int64_t>(choices.size()) / config.top_k;
  std::vector<int32_t> ids;
  std::vector<double> gates;
  for (const Choice& choice : choices) {
    ids.push_back(static_cast<int32_t>(choice.expert));
    gates.push_back(choice.gate);
  }
  Batch batch{Tensor::from<int32_t>(w.ctx, {num_tokens, config.top_k}, ids),
              Tensor::empty(w.ctx, {num_tokens, config.top_k}, c.gate_dtype),
              fill(w.ctx, {num_tokens, config.hidden}, config.dtype,
                   [&](int64_t t, int64_t h) { return token_value(named_token(w.rank(), t), h); })};
  spillway::testing::set_values(batch.gate, gates);
  return batch;
}

}  // namespace spillway::ep::test
