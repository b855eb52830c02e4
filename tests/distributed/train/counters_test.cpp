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

struct Mode {
  const char* name;
  bool recompute, save_dispatch, fused;
  bool again() const { return recompute && !save_dispatch; }
};

constexpr Mode kModes[] = {
    {"kept", false, false, false},          {"kept_fused", false, false, true},
    {"recompute", true, false, false},      {"recompute_fused", true, false, true},
    {"recompute_saved", true, true, false}, {"recompute_saved_fused", true, true, true},
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
    if (mode.recompute) c.recompute.region = model::RecomputeRegion::kLayer;
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

}  // namespace
}  // namespace spillway::train
