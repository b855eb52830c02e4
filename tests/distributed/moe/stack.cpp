#include "distributed/moe/stack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/plan/sizing.h"
#include "support/kernel_test.h"

namespace spillway::moe::test {
namespace {

constexpr uint64_t kSeed = 5;
// Scores are at most 1: nothing with this bias is among the best.
constexpr float kOutOfReach = -100.0F;
// A recomputed run adds in the same order: only what the contract allows, no more.
constexpr Tolerance kTolerance{1e-6, 1e-7};
constexpr Tolerance kBf16Tolerance{1e-3, 1e-4};

RouterConfig router_config(const Setting& setting) {
  RouterConfig router;
  router.aux_coef = 0.01;
  router.z_coef = 0.001;
  if (setting.routing == Routing::kBalanced) router.force = ForceRouting::kBalanced;
  if (setting.routing == Routing::kEmptyExperts) {
    router.score = ScoreFunction::kSigmoid;
    router.bias_update_rate = 0.001;
  }
  return router;
}

template <typename Pick>
int64_t over_ranks(const comm::Communicator& world, comm::Communicator& group, int64_t value,
                   Pick&& pick) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  group.all_gather(&value, all.data(), sizeof(value));
  return pick(all);
}

double norm(const std::vector<double>& values) {
  double squares = 0.0;
  for (const double v : values) squares += v * v;
  return std::sqrt(squares);
}

}  // namespace

std::vector<int> all_ep() {
  const int ranks = comm::make_mpi_world()->size();
  return ranks == 1 ? std::vector<int>{1} : std::vector<int>{ranks / 2, ranks};
}

std::string ep_name(int ep) { return str("ep", ep, "dp", comm::make_mpi_world()->size() / ep); }

model::DecoderConfig decoder_config(const Setting& setting) {
  return {.model = {.vocab_size = kVocabulary,
                    .hidden = kHidden,
                    .layers = setting.layers,
                    .heads = 2,
                    .kv_heads = 1,
                    .max_seq = kSeq},
          .moe = {.experts = kExperts,
                  .top_k = kTopK,
                  .ffn = 16,
                  .alignment = setting.alignment,
                  .router = router_config(setting)}};
}

int64_t worst_case(const Setting& setting) {
  return plan::worst_case_slots(setting.ep * kTokens, kTopK, kExperts / setting.ep,
                                setting.alignment);
}

ep::EpConfig ep_config(const Setting& setting) {
  const int64_t balanced = plan::balanced_slots(setting.ep * kTokens, kTopK, kExperts,
                                                kExperts / setting.ep, setting.alignment);
  const auto wanted = static_cast<int64_t>(setting.of_balanced * static_cast<double>(balanced));
  const int64_t tight = std::max(setting.alignment, wanted / setting.alignment * setting.alignment);
  const bool drop = setting.of_balanced > 0.0;
  return {.ep = setting.ep,
          .num_experts = kExperts,
          .hidden = kHidden,
          .top_k = kTopK,
          .alignment = setting.alignment,
          .dtype = setting.dtype,
          .max_tokens_per_rank = kTokens,
          .recv_capacity_per_rank = std::vector<int64_t>(static_cast<size_t>(setting.layers),
                                                         drop ? tight : worst_case(setting)),
          .drop_on_overflow = drop,
          .drop_order = setting.order,
          .drop_seed = 11,
          .renormalize_kept = setting.renormalize,
          .poison = true};
}

Base::Base(const Setting& chosen, model::RecomputeConfig recompute)
    : setting(chosen),
      config(decoder_config(chosen)),
      world(comm::make_mpi_world()),
      topology(*world, chosen.ep),
      store(ctx, model::parameter_specs(config, chosen.dtype), kSeed, chosen.ep,
            topology.ep_rank()),
      session(ctx, topology) {
  config.recompute = std::move(recompute);
  // Routers far from even, so that experts differ in load and gates in size.
  for (nn::Parameter& parameter : store.all()) {
    if (parameter.spec.name.find("mlp.gate.") == std::string::npos) continue;
    for (int64_t i = 0; i < parameter.value.numel(); ++i) {
      spillway::testing::set_element(parameter.value, i,
                                     20.0 * spillway::testing::element(parameter.value, i));
    }
  }
  session.bootstrap(ep_config(chosen));
}

int64_t Base::sum_over_ranks(int64_t value) const {
  return over_ranks(*world, *world, value, [](const std::vector<int64_t>& all) {
    int64_t total = 0;
    for (const int64_t v : all) total += v;
    return total;
  });
}

int64_t Base::max_over_ranks(int64_t value) const {
  return over_ranks(*world, *world, value, [](const std::vector<int64_t>& all) {
    return *std::max_element(all.begin(), all.end());
  });
}

void Base::churn() {
  // All bits set is a NaN. One block of each size stays taken, so that the next ones lie elsewhere.
  std::vector<Tensor> released;
  for (int64_t bytes = 64; bytes <= (int64_t{1} << 16); bytes *= 2) {
    for (int times = 0; times < 4; ++times) {
      Tensor block = Tensor::empty(ctx, {bytes / 4}, DType::kF32);
      std::memset(block.raw_data(), 0xFF, static_cast<size_t>(block.bytes()));
      (times == 0 ? blocks_ : released).push_back(std::move(block));
    }
  }
}

void apply_routing(const Setting& setting, Tensor selection_bias) {
  if (setting.routing != Routing::kEmptyExperts) return;
  for (int64_t e = 1; e < kExperts; e += 2) {
    selection_bias.span<float>()[static_cast<size_t>(e)] = kOutOfReach;
  }
}

Tensor random_tokens(Base& base, uint64_t seed) {
  Rng rng(seed, static_cast<uint64_t>(base.world->rank()));
  std::vector<int32_t> ids(static_cast<size_t>(kTokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(kVocabulary));
  return Tensor::from<int32_t>(base.ctx, {kBatch, kSeq}, ids);
}

Gradients gradients_of(const nn::ParameterStore& store) {
  Gradients gradients;
  for (const nn::Parameter& parameter : store.all()) {
    gradients[parameter.spec.name] = spillway::testing::to_doubles(parameter.gradient);
  }
  return gradients;
}

double largest(const Gradients& gradients) {
  double most = 0.0;
  for (const auto& [name, values] : gradients) {
    for (const double v : values) most = std::max(most, std::abs(v));
  }
  return most;
}

Tolerance tolerance_of(DType dtype) { return dtype == DType::kBF16 ? kBf16Tolerance : kTolerance; }

::testing::AssertionResult close(const Gradients& actual, const Gradients& expected,
                                 const Tolerance& tolerance) {
  const double scale = largest(expected);
  if (actual.size() != expected.size() || !(scale > 0.0)) {
    return ::testing::AssertionFailure()
           << actual.size() << " and " << expected.size() << " gradients, the largest " << scale;
  }
  for (const auto& [name, wanted] : expected) {
    const std::vector<double>& got = actual.at(name);
    std::vector<double> difference(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) difference[i] = got.at(i) - wanted[i];
    const double off = norm(difference);
    // Written so that a NaN fails.
    if (off <= tolerance.relative * norm(wanted) + tolerance.absolute * scale) continue;
    return ::testing::AssertionFailure()
           << name << " is off by " << off << " in L2 of " << norm(wanted);
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult close(double actual, double expected, const Tolerance& tolerance) {
  if (std::abs(actual - expected) <= tolerance.relative * std::abs(expected)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << str(actual, " and ", expected);
}

::testing::AssertionResult same(const ep::Ledger& a, const ep::Ledger& b) {
  const auto all = [](const ep::Ledger& l) {
    return std::vector<std::vector<int64_t>>{
        l.total_recv_tokens,
        l.recv_assignments,
        l.slot_counts_sum,
        l.padding_slots,
        l.dropped_assignments,
        l.dropped_by_source,
        l.dropped_by_expert,
        l.expert_tokens,
        {l.group_tokens, l.fully_dropped_tokens, l.capacity_begin, l.capacity_end,
         l.recv_buffer_bytes}};
  };
  const auto counts_a = all(a), counts_b = all(b);
  for (size_t i = 0; i < counts_a.size(); ++i) {
    if (counts_a[i] == counts_b[i]) continue;
    return ::testing::AssertionFailure()
           << "field " << i << " of the ledger: " << ::testing::PrintToString(counts_a[i])
           << " and " << ::testing::PrintToString(counts_b[i]);
  }
  if (a.gate_mass != b.gate_mass || a.dropped_gate_mass != b.dropped_gate_mass) {
    return ::testing::AssertionFailure() << "gate masses differ";
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same(const std::vector<LayerRecord>& actual,
                                const std::vector<LayerRecord>& expected) {
  if (actual.size() != expected.size() || expected.empty()) {
    return ::testing::AssertionFailure()
           << actual.size() << " and " << expected.size() << " records of layers";
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i].moe_layer != expected[i].moe_layer ||
        actual[i].micro_batch != expected[i].micro_batch) {
      return ::testing::AssertionFailure() << "record " << i << " is of another call";
    }
    const ::testing::AssertionResult ledger = same(actual[i].ledger, expected[i].ledger);
    if (!ledger) return ::testing::AssertionFailure() << "record " << i << ": " << ledger.message();
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same(const std::vector<Tensor>& actual,
                                const std::vector<Tensor>& expected) {
  if (actual.size() != expected.size() || expected.empty()) {
    return ::testing::AssertionFailure()
           << actual.size() << " and " << expected.size() << " choices";
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!spillway::testing::same_bytes(actual[i], expected[i])) {
      return ::testing::AssertionFailure() << "layer call " << i << " chose other experts";
    }
  }
  return ::testing::AssertionSuccess();
}

int64_t dropped(const std::vector<LayerRecord>& records) {
  int64_t total = 0;
  for (const LayerRecord& record : records) {
    for (const int64_t n : record.ledger.dropped_assignments) total += n;
  }
  return total;
}

void expect_routing(const Setting& setting, const std::vector<LayerRecord>& records) {
  for (const LayerRecord& record : records) {
    const std::vector<int64_t>& tokens = record.ledger.expert_tokens;
    for (size_t e = 0; e < tokens.size(); ++e) {
      if (setting.routing == Routing::kBalanced) {
        EXPECT_EQ(tokens[e], setting.ep * kTokens * kTopK / kExperts) << "expert " << e;
      }
      if (setting.routing == Routing::kEmptyExperts && e % 2 == 1) {
        EXPECT_EQ(tokens[e], 0) << "expert " << e;
      }
    }
  }
}

}  // namespace spillway::moe::test
