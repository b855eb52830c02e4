#include "spillway/optim/gradient_sync.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "spillway/core/rng.h"
#include "worlds.h"

namespace spillway::optim {
namespace {

using Order = std::vector<const char*>;

const Order kBackwardOrder{"head", "down", "router", "up", "norm", "embed"};

/// Gradients of this rank before the sum: not integers, so that every order of additions would
/// give other bits.
void fill_random(RankModel& model) {
  const Rng rng(3, static_cast<uint64_t>(model.world->rank()));
  fill_gradients(model.store, model.topology.ep_rank(), [&](int64_t position, int64_t index) {
    return static_cast<float>(rng.normal_at(static_cast<uint64_t>(position * 1000 + index)));
  });
}

std::vector<std::byte> gradient_bits(nn::ParameterStore& store) {
  std::vector<std::byte> bits;
  for (const nn::SyncGroup group : {nn::SyncGroup::kDense, nn::SyncGroup::kExpert}) {
    const Tensor& flat = store.flat_gradient(group);
    const auto* begin = static_cast<const std::byte*>(flat.raw_data());
    bits.insert(bits.end(), begin, begin + flat.bytes());
  }
  return bits;
}

/// The bits after a sum whose leaves become ready in `order`.
std::vector<std::byte> synced_bits(int ep, int64_t bucket_bytes, const Order& order) {
  RankModel model(ep);
  fill_random(model);
  GradientSync sync(model.store, model.topology, bucket_bytes);
  sync.begin_last_micro_batch();
  for (const char* name : order) sync.on_leaf_ready(model.ctx, name);
  sync.finish(model.ctx);
  return gradient_bits(model.store);
}

void expect_exact_sums(RankModel& model, float factor) {
  const int rank = model.world->rank();
  for_each_element(model.store, model.topology.ep_rank(),
                   [&](nn::Parameter& p, int64_t position, int64_t i, int64_t index) {
                     const float expected = summed_gradient(p.spec.sync, rank, model.world->size(),
                                                            model.topology.ep(), position, index);
                     ASSERT_EQ(p.gradient.data<float>()[i], factor * expected)
                         << p.spec.name << " " << i;
                   });
}

class ExactSums : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(ExactSums, DenseOverTheWorldExpertsOverTheDpRanks) {
  const auto [ep, bucket_bytes] = GetParam();
  RankModel model(ep);
  GradientSync sync(model.store, model.topology, bucket_bytes);
  for (int step = 1; step <= 2; ++step) {
    fill_gradients(model.store, model.topology.ep_rank(), [&](int64_t position, int64_t index) {
      return static_cast<float>(step) * gradient_of(model.world->rank(), position, index);
    });
    sync.begin_last_micro_batch();
    for (const char* name : kBackwardOrder) sync.on_leaf_ready(model.ctx, name);
    sync.finish(model.ctx);
    expect_exact_sums(model, static_cast<float>(step));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ExactSums,
                         testing::Combine(testing::ValuesIn(ep_sizes()),
                                          testing::Values<int64_t>(1, 320, kDefaultBucketBytes)),
                         [](const auto& test) {
                           return str("ep", std::get<0>(test.param), "_bytes",
                                      std::get<1>(test.param));
                         });

class SyncAtEp : public testing::TestWithParam<int> {};

TEST_P(SyncAtEp, AnyBucketSizeGivesTheSameBits) {
  const auto expected = synced_bits(GetParam(), kDefaultBucketBytes, {});
  for (const int64_t bucket_bytes : {int64_t{1}, int64_t{100}, int64_t{320}, int64_t{1000}}) {
    EXPECT_EQ(synced_bits(GetParam(), bucket_bytes, kBackwardOrder), expected) << bucket_bytes;
  }
}

TEST_P(SyncAtEp, AnyOrderOfLeavesGivesTheSameBits) {
  constexpr int64_t kBucketBytes = 320;
  const auto expected = synced_bits(GetParam(), kBucketBytes, {});
  Order order = kBackwardOrder;
  Rng rng(9);  // the same on all ranks
  for (int trial = 0; trial < 8; ++trial) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    EXPECT_EQ(synced_bits(GetParam(), kBucketBytes, order), expected) << trial;
    // Some leaves without a use: `finish` sums theirs.
    const Order part(order.begin(), order.begin() + 3);
    EXPECT_EQ(synced_bits(GetParam(), kBucketBytes, part), expected) << trial;
  }
}

TEST_P(SyncAtEp, DenseGradientsHaveTheSameBitsOnAllRanks) {
  RankModel model(GetParam());
  fill_random(model);
  GradientSync sync(model.store, model.topology, 320);
  sync.finish(model.ctx);
  const Tensor& mine = model.store.flat_gradient(nn::SyncGroup::kDense);
  std::vector<float> all(static_cast<size_t>(mine.numel() * model.world->size()));
  model.world->all_gather(mine.raw_data(), all.data(), mine.bytes());
  for (int rank = 0; rank < model.world->size(); ++rank) {
    EXPECT_EQ(0, std::memcmp(mine.raw_data(), all.data() + rank * mine.numel(),
                             static_cast<size_t>(mine.bytes())))
        << rank;
  }
}

/// Records an op that adds this rank's gradient to every parameter, one after another.
autograd::Variable record_uses(RankModel& model, autograd::Tape& tape) {
  autograd::Variable x(Tensor::zeros(model.ctx, {1}, DType::kF32));
  int64_t position = 0;
  for (nn::Parameter& p : model.store.all()) {
    const bool expert = p.spec.sync == nn::SyncGroup::kExpert;
    const int64_t first = expert ? model.topology.ep_rank() * p.value.numel() : 0;
    x = tape.record("use", Tensor::zeros(model.ctx, {1}, DType::kF32), {p.variable, x},
                    [rank = model.world->rank(), position, first](autograd::Backward& b) {
                      Tensor& gradient = b.accumulator(0);
                      for (int64_t i = 0; i < gradient.numel(); ++i) {
                        gradient.data<float>()[i] += gradient_of(rank, position, first + i);
                      }
                      b.give(1, Tensor::zeros(b.ctx(), {1}, DType::kF32));
                    });
    ++position;
  }
  return x;
}

TEST_P(SyncAtEp, SumsOnATapeAfterTheLastMicroBatch) {
  constexpr int kMicroBatches = 3;
  RankModel model(GetParam());
  GradientSync sync(model.store, model.topology, 320);
  autograd::Tape tape(model.ctx);
  sync.attach(tape);
  for (int step = 0; step < 2; ++step) {
    model.store.zero_gradients(model.ctx);
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      if (micro_batch == kMicroBatches - 1) sync.begin_last_micro_batch();
      tape.backward(record_uses(model, tape), Tensor::zeros(model.ctx, {1}, DType::kF32));
    }
    sync.finish(model.ctx);
    expect_exact_sums(model, kMicroBatches);
  }
}

TEST_P(SyncAtEp, F64GradientsAreSummedToo) {
  RankModel model(GetParam(), DType::kF64);
  fill_gradients(model.store, model.topology.ep_rank(), [&](int64_t position, int64_t index) {
    return gradient_of(model.world->rank(), position, index);
  });
  GradientSync sync(model.store, model.topology, 320);
  sync.finish(model.ctx);
  for_each_element(model.store, model.topology.ep_rank(),
                   [&](nn::Parameter& p, int64_t position, int64_t i, int64_t index) {
                     const double expected =
                         summed_gradient(p.spec.sync, model.world->rank(), model.world->size(),
                                         model.topology.ep(), position, index);
                     ASSERT_EQ(p.gradient.data<double>()[i], expected) << p.spec.name << " " << i;
                   });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SyncAtEp, testing::ValuesIn(ep_sizes()), ep_name);

}  // namespace
}  // namespace spillway::optim
