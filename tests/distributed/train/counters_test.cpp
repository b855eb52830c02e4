// The `counters` line: the table of the EP contract for n MoE layers and m micro-batches, and the
// bytes that the count matrix implies.
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

constexpr int64_t kMicroBatches = 2;
constexpr int64_t kHidden = 32;
// f32 rows and f32 gates.
constexpr int64_t kRowBytes = kHidden * 4;
constexpr int64_t kGateBytes = 4;

using model::RecomputeRegion;

struct Mode {
  const char* name;
  RecomputeRegion region;
  bool save_dispatch, fused;
  bool again() const { return region != RecomputeRegion::kNone && !save_dispatch; }
  bool spared() const { return region != RecomputeRegion::kNone && save_dispatch; }
};

constexpr Mode kModes[] = {
    {"kept", RecomputeRegion::kNone, false, false},
    {"kept_fused", RecomputeRegion::kNone, false, true},
    {"recompute", RecomputeRegion::kLayer, false, false},
    {"recompute_fused", RecomputeRegion::kLayer, false, true},
    {"recompute_saved", RecomputeRegion::kLayer, true, false},
    {"recompute_saved_fused", RecomputeRegion::kLayer, true, true},
    {"moe", RecomputeRegion::kMoe, false, false},
    {"moe_fused", RecomputeRegion::kMoe, false, true},
    {"moe_saved", RecomputeRegion::kMoe, true, false},
    {"moe_saved_fused", RecomputeRegion::kMoe, true, true},
};

class CountersTest : public TrainTest, public testing::WithParamInterface<std::tuple<Split, Mode>> {
 protected:
  config::Config config(const Split& split) const {
    const Mode& mode = std::get<1>(GetParam());
    config::Config c = with_split(base_config(), split, 2, kMicroBatches);
    c.model.layers = 3;
    c.model.first_dense_layers = 1;
    c.moe.alignment = 8;
    c.ep.fused_prepare = mode.fused;
    c.recompute.region = mode.region;
    if (mode.save_dispatch) c.recompute.save = {"dispatch"};
    return c;
  }

  /// Rows that the step sends to other ranks in one direction: with ep = 1 and as many ranks every
  /// rank is a group, so `expert_tokens` is its own row of the count matrix.
  int64_t rows_to_others(const Split& split) {
    auto ranks = first_ranks(split.world());
    if (!ranks) return 0;
    TrainRun run(*ranks, config({1, split.world()}));
    const Trainer::StepResult step = run.trainer.step(1);
    int64_t rows = 0;
    for (const metrics::EpRecord& line : step.ep) {
      for (int source = 0; source < split.world(); ++source) {
        const std::vector<int64_t>& counts = (*line.expert_tokens)[static_cast<size_t>(source)];
        for (size_t e = 0; e < counts.size(); ++e) {
          const int owner = static_cast<int>(e) / (8 / split.ep);
          if (owner != source % split.ep) rows += counts[e];
        }
      }
    }
    return rows;
  }
};

TEST_P(CountersTest, FollowTheContract) {
  const auto& [split, mode] = GetParam();
  const int64_t rows = rows_to_others(split);
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  TrainRun run(*ranks, config(split));
  const Trainer::StepResult step = run.trainer.step(1);
  EXPECT_EQ(step.agreement.counters_differ_on, -1);
  if (ranks->rank() != 0) return;

  const int64_t calls = 2 * kMicroBatches;  // MoE layers x micro-batches
  const int64_t again = mode.again() ? calls : 0;
  const int64_t syncs = split.ep > 1 ? 1 : 0;
  const metrics::CounterValues& total = step.counters.total;
  const metrics::CounterValues& backward = step.counters.backward;
  EXPECT_EQ(total.prepares, mode.fused ? 0 : calls + again);
  EXPECT_EQ(backward.prepares, mode.fused ? 0 : again);
  EXPECT_EQ(total.fused_prepares, mode.fused ? calls + again : 0);
  EXPECT_EQ(backward.fused_prepares, mode.fused ? again : 0);
  EXPECT_EQ(total.forward_dispatches, calls + again);
  EXPECT_EQ(backward.forward_dispatches, again);
  EXPECT_EQ(total.combines, calls);
  EXPECT_EQ(backward.combines, 0);
  EXPECT_EQ(total.backward_transports, 2 * calls);
  EXPECT_EQ(backward.backward_transports, 2 * calls);
  EXPECT_EQ(total.host_syncs, syncs * (calls + again));
  EXPECT_EQ(backward.host_syncs, syncs * again);

  const int64_t dispatch = rows * (kRowBytes + kGateBytes), combine = rows * kRowBytes;
  const int64_t repeated = mode.again() ? dispatch : 0;
  EXPECT_EQ(split.ep > 1, rows > 0);
  EXPECT_EQ(total.all_to_all_bytes, 2 * dispatch + 2 * combine + repeated);
  EXPECT_EQ(backward.all_to_all_bytes, dispatch + combine + repeated);
  EXPECT_EQ(step.agreement.all_to_all_bytes, total.all_to_all_bytes);

  // What a run that does not save the dispatch repeats in backward.
  const metrics::CounterValues& avoided = step.counters.avoided;
  const int64_t spared = mode.spared() ? calls : 0;
  EXPECT_EQ(avoided.prepares, mode.fused ? 0 : spared);
  EXPECT_EQ(avoided.fused_prepares, mode.fused ? spared : 0);
  EXPECT_EQ(avoided.forward_dispatches, spared);
  EXPECT_EQ(avoided.combines, 0);
  EXPECT_EQ(avoided.backward_transports, 0);
  EXPECT_EQ(avoided.host_syncs, syncs * spared);
  EXPECT_EQ(avoided.all_to_all_bytes, mode.spared() ? dispatch : 0);
}

TEST_P(CountersTest, AStepStartsFromZero) {
  const auto& [split, mode] = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  TrainRun run(*ranks, config(split));
  const StepResults steps = train_steps(run, 1, 2);
  if (ranks->rank() != 0) return;
  EXPECT_EQ(steps[1].counters.total.combines, steps[0].counters.total.combines);
  EXPECT_EQ(steps[1].counters.step, 2);
}

INSTANTIATE_TEST_SUITE_P(Splits, CountersTest,
                         testing::Combine(testing::ValuesIn(all_splits()),
                                          testing::ValuesIn(kModes)),
                         [](const auto& test) {
                           return split_name(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

TEST_F(TrainTest, BytesOfBalancedRoutingAreAFormula) {
  const int ep = world().size();
  config::Config config = with_split(base_config(), {ep, 1}, 2, 1);
  config.moe.router.force = moe::ForceRouting::kBalanced;
  TrainRun run(world(), config);
  const Trainer::StepResult step = run.trainer.step(1);
  // 64 tokens x 2 of 8 experts in turn: every source sends as many rows to every expert.
  const int64_t rows = 2 * ep * 64 * 2 * (ep - 1) / ep;
  EXPECT_EQ(step.agreement.all_to_all_bytes, rows * (4 * kRowBytes + 2 * kGateBytes));
  for (const metrics::EpRecord& line : step.ep) {
    EXPECT_EQ(line.expert_tokens->front(), std::vector<int64_t>(8, ep * 16));
    EXPECT_EQ(line.max_over_balanced, 1.0);
  }
}

TEST_F(TrainTest, BytesAreHalfInBf16ButForTheGates) {
  const int ep = world().size();
  config::Config config = with_split(base_config(), {ep, 1}, 2, 1);
  config.moe.router.force = moe::ForceRouting::kBalanced;
  config.run.dtype = DType::kBF16;
  TrainRun run(world(), config);
  const Trainer::StepResult step = run.trainer.step(1);
  const int64_t rows = 2 * ep * 64 * 2 * (ep - 1) / ep;
  EXPECT_EQ(step.agreement.all_to_all_bytes, rows * (2 * kRowBytes + 2 * kGateBytes));
}

TEST_F(TrainTest, DroppedRowsAreNotSent) {
  const int ep = world().size();
  config::Config config = with_split(base_config(), {ep, 1}, 2, 1);
  config.moe.router.force = moe::ForceRouting::kBalanced;
  config.capacity.policy = "factor";
  config.capacity.factor.factor = 0.5;
  config.capacity.on_overflow = capacity::OnOverflow::kDrop;
  TrainRun run(world(), config);
  const Trainer::StepResult step = run.trainer.step(1);
  EXPECT_EQ(step.agreement.dropped_assignments, 2 * ep * 64);  // half of 2 layers x 128 a rank
  // Whole experts are kept (order "tail"), with equal parts from all sources.
  const int64_t rows = 2 * 64 * (ep - 1);
  EXPECT_EQ(step.agreement.all_to_all_bytes, rows * (4 * kRowBytes + 2 * kGateBytes));
}

/// Under "score" a layer that overflows has one more exchange, on every rank of its EP group.
class ScoreSyncs : public TrainTest, public testing::WithParamInterface<Mode> {
 protected:
  metrics::CountersRecord counters(const Split& split, RecomputeRegion region, bool save,
                                   int64_t& overflows) {
    auto ranks = first_ranks(split.world());
    if (!ranks) return {};
    config::Config c = with_split(base_config(), split, 2, kMicroBatches);
    c.ep.drop_order = plan::DropOrder::kScore;
    c.ep.fused_prepare = GetParam().fused;
    c.capacity.policy = "factor";
    c.capacity.factor.factor = 1.0;
    c.capacity.on_overflow = capacity::OnOverflow::kDrop;
    c.recompute.region = region;
    if (save) c.recompute.save = {"dispatch"};
    TrainRun run(*ranks, c);
    const Trainer::StepResult step = run.trainer.step(1);
    overflows = 0;
    for (const metrics::EpRecord& line : step.ep) {
      // Counters are those of rank 0: of its EP group.
      const auto first = line.dropped_assignments->begin();
      overflows += std::any_of(first, first + split.ep, [](int64_t n) { return n > 0; }) ? 1 : 0;
    }
    return step.counters;
  }
};

TEST_P(ScoreSyncs, AreTwoWhereALayerOverflows) {
  const Mode& mode = GetParam();
  for (const Split& split : all_splits()) {
    int64_t overflows = 0, of_other = 0;
    const metrics::CountersRecord got = counters(split, mode.region, mode.save_dispatch, overflows);
    metrics::CountersRecord repeating;
    if (mode.spared()) repeating = counters(split, mode.region, false, of_other);
    if (world().rank() != 0 || split.world() > world().size()) continue;
    SCOPED_TRACE(split_name(split));
    const int64_t calls = 2 * kMicroBatches;
    const int64_t once = split.ep > 1 ? calls + overflows : 0;
    if (split.ep > 1) {
      EXPECT_GT(overflows, 0) << "nothing overflowed";
    }
    EXPECT_EQ(got.total.host_syncs, mode.again() ? 2 * once : once);
    EXPECT_EQ(got.backward.host_syncs, mode.again() ? once : 0);
    EXPECT_EQ(got.avoided.host_syncs, mode.spared() ? once : 0);
    if (!mode.spared()) continue;
    EXPECT_EQ(overflows, of_other);
    EXPECT_EQ(got.avoided.prepares, repeating.backward.prepares);
    EXPECT_EQ(got.avoided.fused_prepares, repeating.backward.fused_prepares);
    EXPECT_EQ(got.avoided.forward_dispatches, repeating.backward.forward_dispatches);
    EXPECT_EQ(got.avoided.host_syncs, repeating.backward.host_syncs);
    EXPECT_EQ(got.avoided.all_to_all_bytes,
              repeating.backward.all_to_all_bytes - got.backward.all_to_all_bytes);
  }
}

// Kept, computed again by layer and by MoE layer, saved: by two calls, and by one.
INSTANTIATE_TEST_SUITE_P(, ScoreSyncs,
                         testing::Values(kModes[0], kModes[2], kModes[6], kModes[8], kModes[9]),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway::train
