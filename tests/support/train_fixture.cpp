#include "support/train_fixture.h"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>

#include "spillway/config/validate.h"
#include "spillway/core/log.h"
#include "spillway/core/rng.h"
#include "spillway/kernels/elementwise.h"

namespace spillway::train {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTextSeed = 20;
constexpr int64_t kTextWords = 4000;  // about 24 kB: 750 sequences of 32
constexpr uint64_t kVocabulary = 60;

/// Words of a small vocabulary, so that a model learns something within a few steps.
std::string make_text() {
  std::vector<std::string> words;
  Rng rng(kTextSeed);
  for (uint64_t w = 0; w < kVocabulary; ++w) {
    std::string word;
    const uint64_t length = 2 + rng.below(6);
    for (uint64_t i = 0; i < length; ++i) word += static_cast<char>('a' + rng.below(26));
    words.push_back(word);
  }
  std::string text;
  for (int64_t w = 0; w < kTextWords; ++w) {
    // The product of two draws favours the first words, as in a language.
    const uint64_t which = rng.below(kVocabulary) * rng.below(kVocabulary) / kVocabulary;
    text += words[which] + (w % 12 == 11 ? ".\n" : " ");
  }
  return text;
}

std::string broadcast_text(comm::Communicator& world, const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  std::vector<std::byte> blob(bytes, bytes + text.size());
  world.broadcast_from_root(blob);
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

template <typename Pick>
NamedValues gather(TrainRun& run, Pick&& pick) {
  nn::ParameterStore& store = run.trainer.parameters();
  std::vector<float> mine;
  for (const nn::Parameter& parameter : store.all()) {
    const Tensor& tensor = pick(parameter);
    visit_float(tensor.dtype(), [&]<typename T>() {
      for (const T value : tensor.template span<T>()) mine.push_back(static_cast<float>(value));
    });
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(mine.data());
  const auto blobs = run.world.gather_to_root({bytes, mine.size() * sizeof(float)});
  NamedValues values;
  if (run.world.rank() != 0) return values;
  size_t position = 0;
  for (const nn::Parameter& parameter : store.all()) {
    const auto count = static_cast<size_t>(parameter.value.numel());
    const int64_t holders =
        parameter.spec.sync == nn::SyncGroup::kExpert ? run.config.parallel.ep : 1;
    std::vector<float>& all = values[parameter.spec.name];
    for (int64_t rank = 0; rank < holders; ++rank) {
      const auto* from = reinterpret_cast<const float*>(blobs[static_cast<size_t>(rank)].data());
      all.insert(all.end(), from + position, from + position + count);
    }
    position += count;
  }
  return values;
}

bool equal_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

}  // namespace

std::string split_name(const Split& split) { return str("ep", split.ep, "dp", split.dp); }

std::vector<Split> all_splits() {
  const int ranks = comm::make_mpi_world()->size();
  if (ranks == 8) return {{8, 1}, {4, 2}, {2, 4}, {1, 8}};
  std::vector<Split> splits;
  for (const Split& split :
       {Split{1, 1}, Split{2, 1}, Split{1, 2}, Split{4, 1}, Split{2, 2}, Split{1, 4}}) {
    if (split.world() <= ranks) splits.push_back(split);
  }
  return splits;
}

std::vector<Split> expert_parallel_splits() {
  std::vector<Split> splits = all_splits();
  std::erase_if(splits, [](const Split& split) { return split.ep == 1; });
  return splits;
}

std::vector<int> world_sizes() {
  const int ranks = comm::make_mpi_world()->size();
  std::vector<int> sizes{1};
  for (int size = 2; size <= ranks && size <= 4; size *= 2) sizes.push_back(size);
  return sizes;
}

TrainTest::TrainTest() : world_(comm::make_mpi_world()) {
  log::configure(world_->rank(), log::Level::kOff);
  std::string name;
  if (is_root()) {
    std::string pattern = (fs::temp_directory_path() / "spillway_train_XXXXXX").string();
    SPILLWAY_CHECK(mkdtemp(pattern.data()) != nullptr, "no temporary folder ", pattern);
    name = pattern;
    std::ofstream(fs::path(name) / "text.txt", std::ios::binary) << make_text();
  }
  folder_ = broadcast_text(*world_, name);
}

TrainTest::~TrainTest() {
  world_->barrier();
  std::error_code ignored;
  if (is_root()) fs::remove_all(folder_, ignored);
}

config::Config TrainTest::base_config() const {
  config::Config c;
  c.run.seed = 3;
  c.run.dir = (folder_ / "run").string();
  c.model = {.hidden = 32, .layers = 2, .heads = 4, .kv_heads = 2, .max_seq = 32, .dense_ffn = 48};
  c.moe.experts = 8;
  c.moe.top_k = 2;
  c.moe.ffn = 32;
  c.moe.router.aux_loss = moe::AuxLoss::kNone;
  c.moe.router.aux_coef = 0.0;
  c.moe.router.z_coef = 0.0;
  c.data.train = {text_path()};
  c.data.seq = 32;
  // With an epsilon far above any gradient AdamW's update is lr / eps times the averaged gradient:
  // it does not turn rounding of tiny gradients into steps of full size, so runs can be compared.
  c.optim = {.lr = 20.0,
             .min_lr = 20.0,
             .schedule = optim::Schedule::kConstant,
             .warmup_steps = 0,
             .beta1 = 0.5,
             .beta2 = 0.9,
             .eps = 100.0,
             .weight_decay = 0.001,
             .clip = 0.5};
  c.train = {.steps = 100, .micro_batch = 2, .check_replicas = 1};
  c.log.level = log::Level::kOff;
  c.log.every = 0;
  return c;
}

std::unique_ptr<comm::Communicator> TrainTest::first_ranks(int n) {
  const bool inside = world_->rank() < n;
  auto group = world_->split(inside ? 0 : 1, world_->rank());
  if (!inside) return nullptr;
  return group;
}

config::Config with_split(config::Config base, const Split& split, int64_t micro_batch,
                          int64_t grad_accum) {
  base.parallel.ep = split.ep;
  base.train.micro_batch = micro_batch;
  base.train.grad_accum = grad_accum;
  return base;
}

TrainRun::TrainRun(comm::Communicator& run_world, const config::Config& run_config)
    : world(run_world),
      config((config::validate(run_config, run_world.size()), run_config)),
      ctx(Device::kCpu, 1),
      trainer(ctx, world, config, signals) {}

StepResults train_steps(TrainRun& run, int64_t first, int64_t count) {
  StepResults results;
  for (int64_t s = first; s < first + count; ++s) results.push_back(run.trainer.step(s));
  return results;
}

NamedValues gather_gradients(TrainRun& run) {
  return gather(run, [](const nn::Parameter& p) -> const Tensor& { return p.gradient; });
}

NamedValues gather_weights(TrainRun& run) {
  return gather(run, [](const nn::Parameter& p) -> const Tensor& { return p.value; });
}

uint64_t weights_checksum(TrainRun& run) {
  uint64_t hash = 0;
  for (const nn::Parameter& parameter : run.trainer.parameters().all()) {
    hash = mix64(hash ^ kernels::checksum(parameter.value));
  }
  return hash;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  SPILLWAY_CHECK(a.size() == b.size(), a.size(), " and ", b.size(), " elements");
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

testing::AssertionResult close(const NamedValues& actual, const NamedValues& expected,
                               double tolerance) {
  if (actual.size() != expected.size() || expected.empty()) {
    return testing::AssertionFailure()
           << actual.size() << " and " << expected.size() << " parameters";
  }
  double worst = 0.0;
  std::string name;
  for (const auto& [key, values] : expected) {
    const double difference = relative_l2(actual.at(key), values);
    if (difference <= worst) continue;
    worst = difference;
    name = key;
  }
  if (worst <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << name << " differs by " << worst << " in relative L2; " << tolerance << " allowed";
}

testing::AssertionResult close(double actual, double expected, double tolerance) {
  if (std::abs(actual - expected) <= tolerance * std::abs(expected)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << str(actual, " and ", expected, " differ by ", (actual - expected) / expected, "; ",
                tolerance, " allowed");
}

testing::AssertionResult same_bits(const NamedValues& actual, const NamedValues& expected) {
  if (actual.size() != expected.size() || expected.empty()) {
    return testing::AssertionFailure()
           << actual.size() << " and " << expected.size() << " parameters";
  }
  for (const auto& [key, values] : expected) {
    const std::vector<float>& other = actual.at(key);
    if (!std::equal(values.begin(), values.end(), other.begin(), other.end(), equal_bits)) {
      return testing::AssertionFailure()
             << key << " has other bits (relative L2 " << relative_l2(other, values) << ")";
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult same_bits(double actual, double expected) {
  if (std::bit_cast<uint64_t>(actual) == std::bit_cast<uint64_t>(expected)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << str(actual, " and ", expected, " differ by ", actual - expected);
}

std::map<int64_t, std::vector<int64_t>> expert_tokens(const Trainer::StepResult& result) {
  std::map<int64_t, std::vector<int64_t>> totals;
  for (const metrics::EpRecord& line : result.ep) {
    std::vector<int64_t>& total = totals[line.layer];
    for (const std::vector<int64_t>& group : line.expert_tokens.value()) {
      total.resize(group.size(), 0);
      for (size_t e = 0; e < group.size(); ++e) total[e] += group[e];
    }
  }
  return totals;
}

int64_t total_grow_events(const StepResults& steps) {
  int64_t events = 0;
  for (const Trainer::StepResult& step : steps) {
    for (const metrics::EpStepRecord& layer : step.ep_step) events += layer.grow_events;
  }
  return events;
}

int64_t total_dropped(const StepResults& steps) {
  int64_t dropped = 0;
  for (const Trainer::StepResult& step : steps) {
    for (const metrics::EpStepRecord& layer : step.ep_step) {
      dropped += layer.dropped_assignments.value();
    }
  }
  return dropped;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace spillway::train
