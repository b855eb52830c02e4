// ZeRO-1 against whole optimizer state. Sums, updates and gathers touch every element in the same
// way, so that weights and state have the same bits. Only the norm is added in another order: equal
// to rounding, and so is what is clipped by it.

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "spillway/core/rng.h"
#include "spillway/optim/adamw.h"
#include "spillway/optim/grad_norm.h"
#include "spillway/optim/gradient_sync.h"
#include "worlds.h"

namespace spillway::optim {
namespace {

constexpr int kSteps = 4;
// A few hundred f64 terms, added in another order.
constexpr double kNormTolerance = 1e-14;
// The clip factor reaches the kernel as f32: a norm that differs by rounding may move it by one
// unit in the last place, and the gradient with it; AdamW's update has the size of lr = 0.01.
constexpr double kClippedTolerance = 1e-8;

/// Parameters, optimizer and sums of one run on this rank.
struct Replica {
  Replica(int ep, DType dtype, const OptimConfig& config, bool zero, int64_t bucket_bytes)
      : model(ep, dtype),
        adamw(model.ctx, model.store, model.topology, config, zero, bucket_bytes),
        sync(model.store, model.topology, adamw.layout()) {}

  /// Gradients of step `t`, other ones on every rank: not integers, so that every other order of
  /// additions would give other bits.
  void fill(int t) {
    model.store.zero_gradients(model.ctx);
    const Rng rng(static_cast<uint64_t>(t), static_cast<uint64_t>(model.world->rank()));
    fill_gradients(model.store, model.topology.ep_rank(), [&](int64_t position, int64_t index) {
      return static_cast<float>(rng.normal_at(static_cast<uint64_t>(position * 1000 + index)));
    });
  }
  double norm() {
    Tensor sum = Tensor::from<double>(model.ctx, {1},
                                      std::vector<double>{norm_squares_contribution(
                                          model.ctx, model.store, model.topology, adamw.layout())});
    model.world->all_reduce_sum(model.ctx, sum);
    return std::sqrt(sum.data<double>()[0]);
  }
  /// NaN wherever this rank's part of the sums is not.
  void poison_foreign_gradients() {
    for (const Bucket& bucket : adamw.layout().buckets) {
      float* const g = model.store.flat_gradient(bucket.group).data<float>();
      for (int64_t i = bucket.begin; i < bucket.begin + bucket.elements; ++i) {
        const bool own = i >= bucket.own.begin && i < bucket.own.begin + bucket.own.count;
        if (!own) g[i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  void step(int t, double clip) {
    fill(t);
    sync.finish(model.ctx);
    if (adamw.layout().sharded) poison_foreign_gradients();
    adamw.step(model.ctx, 0.01, clip_scale(norm(), clip), t);
  }

  RankModel model;
  AdamW adamw;
  GradientSync sync;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.bytes() == b.bytes() &&
         std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(a.bytes())) == 0;
}

void expect_close_masters(const Replica& zero, const Replica& whole, double tolerance) {
  for (const StatePiece& piece : zero.adamw.pieces()) {
    const std::string& name = piece.parameter->spec.name;
    const float* const other = piece_of(whole.adamw, name).master.data<float>() + piece.begin;
    for (int64_t i = 0; i < piece.count; ++i) {
      ASSERT_NEAR(piece.master.data<float>()[i], other[i], tolerance) << name << " " << i;
    }
  }
}

void expect_same_state(const Replica& zero, Replica& whole) {
  for (const StatePiece& piece : zero.adamw.pieces()) {
    const std::string& name = piece.parameter->spec.name;
    const StatePiece& all = piece_of(whole.adamw, name);
    const Shape run{piece.count};
    EXPECT_TRUE(same_bits(piece.master, all.master.slice(piece.begin, run))) << name;
    EXPECT_TRUE(same_bits(piece.m, all.m.slice(piece.begin, run))) << name;
    EXPECT_TRUE(same_bits(piece.v, all.v.slice(piece.begin, run))) << name;
    EXPECT_TRUE(piece.primary) << name;
  }
  for (const nn::Parameter& p : zero.model.store.all()) {
    EXPECT_TRUE(same_bits(p.value, whole.model.store.at(p.spec.name).value)) << p.spec.name;
  }
}

using Case = std::tuple<int, DType, int64_t>;  // ep, dtype, bytes of a bucket

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [ep, dtype, bytes] = info.param;
  return str("ep", ep, "_", dtype_name(dtype), "_bytes", bytes);
}

class ZeroAt : public testing::TestWithParam<Case> {
 protected:
  static Replica make(const OptimConfig& config, bool zero) {
    const auto& [ep, dtype, bytes] = GetParam();
    return Replica(ep, dtype, config, zero, bytes);
  }
};

TEST_P(ZeroAt, WithoutClippingWeightsAndStateHaveTheBitsOfWholeState) {
  const OptimConfig config;
  Replica zero = make(config, true), whole = make(config, false);
  for (int t = 1; t <= kSteps; ++t) {
    zero.step(t, 0.0);
    whole.step(t, 0.0);
    expect_same_state(zero, whole);
  }
}

TEST_P(ZeroAt, ClippedStepsAreEqualToRounding) {
  constexpr double kClip = 0.5;
  const OptimConfig config;
  Replica zero = make(config, true), whole = make(config, false);
  for (int t = 1; t <= kSteps; ++t) {
    zero.step(t, kClip);
    whole.step(t, kClip);
    const double norm = whole.norm();
    ASSERT_GT(norm, kClip);
    EXPECT_NEAR(zero.norm(), norm, norm * kNormTolerance);
    expect_close_masters(zero, whole, kClippedTolerance);
  }
}

TEST_P(ZeroAt, ASecondRunHasTheSameBits) {
  const OptimConfig config;
  Replica first = make(config, true), second = make(config, true);
  for (int t = 1; t <= kSteps; ++t) first.step(t, 0.5);
  for (int t = 1; t <= kSteps; ++t) second.step(t, 0.5);
  for (const nn::Parameter& p : first.model.store.all()) {
    EXPECT_TRUE(same_bits(p.value, second.model.store.at(p.spec.name).value)) << p.spec.name;
  }
}

/// How many ranks of the world hold each element, in the order of the whole model's parameters.
std::vector<double> holders(Replica& replica, bool primary_only) {
  RankModel& model = replica.model;
  std::vector<int64_t> first;
  int64_t total = 0;
  for (const nn::ParameterSpec& spec : small_model()) {
    first.push_back(total);
    total += spec.shape.numel();
  }
  Tensor counts = Tensor::zeros(model.ctx, {total}, DType::kF64);
  for (const StatePiece& piece : replica.adamw.pieces()) {
    if (primary_only && !piece.primary) continue;
    const nn::Parameter& p = *piece.parameter;
    const bool expert = p.spec.sync == nn::SyncGroup::kExpert;
    const int64_t start = first[static_cast<size_t>(&p - model.store.all().data())] + piece.begin +
                          (expert ? model.topology.ep_rank() * p.value.numel() : 0);
    for (int64_t i = 0; i < piece.count; ++i) counts.data<double>()[start + i] += 1.0;
  }
  model.world->all_reduce_sum(model.ctx, counts);
  const auto span = counts.span<double>();
  return {span.begin(), span.end()};
}

TEST_P(ZeroAt, EveryElementHasOneHolder) {
  Replica zero = make({}, true);
  const std::vector<double> counts = holders(zero, false);
  EXPECT_EQ(counts, std::vector<double>(counts.size(), 1.0));
}

TEST_P(ZeroAt, EveryElementHasOnePrimaryHolderWithAndWithoutZero) {
  for (const bool sharded : {false, true}) {
    Replica replica = make({}, sharded);
    const std::vector<double> counts = holders(replica, true);
    EXPECT_EQ(counts, std::vector<double>(counts.size(), 1.0)) << sharded;
  }
}

TEST_P(ZeroAt, BytesAreWhatTheAllocatorCounts) {
  Replica zero = make({}, true);
  const int64_t counted = zero.model.ctx.allocator()->use(Purpose::kOptimizer).current_bytes;
  EXPECT_EQ(zero.adamw.bytes(), counted);
}

TEST_P(ZeroAt, ABadSumIsSeenWhoeverOwnsIt) {
  Replica zero = make({}, true);
  // The first and the last element of every parameter, made bad by the last rank.
  for (size_t p = 0; p < zero.model.store.all().size(); ++p) {
    for (const bool last : {false, true}) {
      zero.fill(1);
      Tensor gradient = zero.model.store.all()[p].gradient;
      const bool mine = zero.model.world->rank() == zero.model.world->size() - 1;
      if (mine) gradient.data<float>()[last ? gradient.numel() - 1 : 0] = INFINITY;
      zero.sync.finish(zero.model.ctx);
      zero.poison_foreign_gradients();
      EXPECT_FALSE(std::isfinite(zero.norm())) << small_model()[p].name;
    }
  }
}

TEST_P(ZeroAt, RefreshedValuesAreTheMastersOfAllRanks) {
  const OptimConfig config;
  Replica zero = make(config, true), whole = make(config, false);
  for (int t = 1; t <= 2; ++t) {
    zero.step(t, 0.0);
    whole.step(t, 0.0);
  }
  // A fresh optimizer that gets the state as a checkpoint would give it.
  Replica fresh = make(config, true);
  for (const StatePiece& piece : fresh.adamw.pieces()) {
    const StatePiece& from = piece_of(zero.adamw, piece.parameter->spec.name);
    StatePiece to = piece;
    copy(from.master, to.master);
    copy(from.m, to.m);
    copy(from.v, to.v);
  }
  fresh.adamw.refresh_values(fresh.model.ctx);
  expect_same_state(fresh, whole);
  fresh.step(3, 0.0);
  whole.step(3, 0.0);
  expect_same_state(fresh, whole);
}

// One parameter a bucket (several smaller than the number of ranks' chunks), two, all.
INSTANTIATE_TEST_SUITE_P(Worlds, ZeroAt,
                         testing::Combine(testing::ValuesIn(ep_sizes()),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values<int64_t>(1, 320, kDefaultBucketBytes)),
                         case_name);

class ZeroBytesAtEp : public testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(ZeroBytesAtEp, AreThoseOfTheGroupOverItsSizeWithinOnePercent) {
  constexpr double kShare = 0.01;
  const auto [ep, dtype] = GetParam();
  const auto world = comm::make_mpi_world();
  comm::Topology topology(*world, ep);
  const std::vector<nn::ParameterSpec> specs{
      spec_of("embed", {100, 64}, dtype), spec_of("norm", {64}, dtype),
      spec_of("up", {8, 64, 96}, dtype, nn::SyncGroup::kExpert), spec_of("head", {100, 64}, dtype)};
  Context ctx;
  nn::ParameterStore store(ctx, specs, kModelSeed, ep, topology.ep_rank());
  const AdamW adamw(ctx, store, topology, {}, true, 16384);
  const double bytes_each = dtype == DType::kF32 ? 8.0 : 12.0;
  const double dense = 2 * 100 * 64 + 64, experts = 8.0 * 64 * 96 / ep;
  const double expected = bytes_each * (dense / world->size() + experts / topology.dp());
  EXPECT_NEAR(static_cast<double>(adamw.bytes()), expected, kShare * expected);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ZeroBytesAtEp,
                         testing::Combine(testing::ValuesIn(ep_sizes()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return str("ep", std::get<0>(test.param), "_",
                                      dtype_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace spillway::optim
