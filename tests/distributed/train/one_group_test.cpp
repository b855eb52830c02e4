// Two EP groups of which one overflows: nobody waits for anybody, and both go on alike.
#include <algorithm>

#include "support/train_fixture.h"

namespace spillway::train {
namespace {

using capacity::OnOverflow;

constexpr int64_t kSteps = 6;

/// ep = half of the ranks, dp = 2.
class OneOfTwoGroupsTest : public TrainTest {
 protected:
  void SetUp() override {
    if (world().size() < 4) GTEST_SKIP() << "needs two groups of two ranks";
  }
  int ep() { return world().size() / 2; }

  config::Config worst_case() {
    config::Config c = with_split(base_config(), {ep(), 2}, 1, 2);
    c.optim = {.lr = 5e-3, .min_lr = 1e-3, .warmup_steps = 0};
    c.moe.router.bias_update_rate = 0.001;
    c.train.steps = kSteps;
    return c;
  }
  config::Config fixed(int64_t slots, OnOverflow action) {
    config::Config c = worst_case();
    c.capacity.policy = "fixed";
    c.capacity.fixed.slots = slots;
    c.capacity.on_overflow = action;
    c.capacity.grow_margin = 0.0;
    return c;
  }

  /// Highest demand of each group in all layers and micro-batches of a step (rank 0).
  std::vector<int64_t> demand_of_groups(const Trainer::StepResult& step) {
    std::vector<int64_t> highest{0, 0};
    for (const metrics::EpRecord& line : step.ep) {
      for (size_t r = 0; r < line.total_recv_tokens.size(); ++r) {
        int64_t& group = highest[r / static_cast<size_t>(ep())];
        group = std::max(group, line.total_recv_tokens[r]);
      }
    }
    return highest;
  }

  /// As many slots as the calmer group needs in step 1, on every rank.
  int64_t slots_for_one_group() {
    TrainRun run(world(), worst_case());
    const Trainer::StepResult step = run.trainer.step(1);
    int64_t slots = 0;
    if (is_root()) {
      const std::vector<int64_t> demand = demand_of_groups(step);
      EXPECT_NE(demand[0], demand[1]) << "both groups overflow at the same capacity";
      slots = std::min(demand[0], demand[1]);
    }
    std::vector<int64_t> all(static_cast<size_t>(world().size()));
    world().all_gather(&slots, all.data(), sizeof(slots));
    return all.front();
  }

  void expect_equal_capacities(TrainRun& run) {
    const std::vector<int64_t> mine = run.trainer.capacity().capacities();
    std::vector<int64_t> all(mine.size() * static_cast<size_t>(world().size()));
    world().all_gather(mine.data(), all.data(),
                       static_cast<int64_t>(mine.size() * sizeof(int64_t)));
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], mine[i % mine.size()]) << "rank " << i / mine.size();
    }
    for (size_t layer = 0; layer < mine.size(); ++layer) {
      EXPECT_EQ(run.trainer.capacity().session().capacity(static_cast<int64_t>(layer)),
                mine[layer]);
    }
  }

  /// Of all MoE layers, one after the other.
  static std::vector<float> biases(TrainRun& run) {
    std::vector<float> all;
    for (const moe::SelectionBias& bias : run.trainer.decoder().selection_biases()) {
      const std::span<const float> values = std::as_const(bias.values).span<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    EXPECT_EQ(all.size(), 2U * 8U);
    return all;
  }
};

TEST_F(OneOfTwoGroupsTest, GrowsAloneWithTheBitsOfTheWorstCase) {
  const int64_t slots = slots_for_one_group();
  TrainRun reference(world(), worst_case());
  TrainRun growing(world(), fixed(slots, OnOverflow::kGrow));
  int64_t one_only = 0;
  for (int64_t s = 1; s <= kSteps; ++s) {
    const Trainer::StepResult wanted = reference.trainer.step(s);
    const Trainer::StepResult step = growing.trainer.step(s);
    EXPECT_TRUE(same_bits(step.record.loss, wanted.record.loss)) << "step " << s;
    EXPECT_TRUE(same_bits(step.record.grad_norm, wanted.record.grad_norm)) << "step " << s;
    EXPECT_FALSE(step.record.skipped);
    expect_equal_capacities(growing);
    for (const metrics::EpRecord& line : step.ep) {
      one_only += line.capacity_end[0] != line.capacity_end[1] ? 1 : 0;
      EXPECT_EQ(sum(*line.dropped_assignments), 0);
    }
    if (!is_root() || s > 1) continue;
    const std::vector<int64_t> demand = demand_of_groups(step);
    EXPECT_EQ((demand[0] > slots) + (demand[1] > slots), 1) << "one group overflows in step 1";
    EXPECT_GT(one_only, 0) << "the groups end step 1 with equal capacities";
  }
  EXPECT_EQ(weights_checksum(growing), weights_checksum(reference));
  EXPECT_EQ(biases(growing), biases(reference));
}

TEST_F(OneOfTwoGroupsTest, SkipsTheStepOnEveryRank) {
  const int64_t slots = slots_for_one_group();
  TrainRun skipping(world(), fixed(slots, OnOverflow::kSkip));
  std::vector<int64_t> taken, skipped;
  for (int64_t s = 1; s <= kSteps; ++s) {
    const uint64_t weights = weights_checksum(skipping);
    const std::vector<float> before = biases(skipping);
    const Trainer::StepResult step = skipping.trainer.step(s);
    (step.record.skipped ? skipped : taken).push_back(s);
    expect_equal_capacities(skipping);
    EXPECT_EQ(step.agreement.skip, step.record.skipped ? 1 : 0);
    EXPECT_EQ(weights_checksum(skipping) == weights, step.record.skipped) << "step " << s;
    EXPECT_EQ(biases(skipping) == before, step.record.skipped) << "step " << s;
    if (!is_root()) continue;
    const std::vector<int64_t> demand = demand_of_groups(step);
    EXPECT_EQ(demand[0] > slots || demand[1] > slots, step.record.skipped);
    if (s == 1) {
      EXPECT_NE(demand[0] > slots, demand[1] > slots) << "one group overflows in step 1";
    }
  }
  ASSERT_FALSE(skipped.empty());
  EXPECT_EQ(skipped.front(), 1);
  // Data and schedule have gone on, moments have not: only the taken steps, with room to spare.
  TrainRun only_taken(world(), worst_case());
  for (const int64_t s : taken) only_taken.trainer.step(s);
  EXPECT_EQ(weights_checksum(only_taken), weights_checksum(skipping));
  EXPECT_EQ(biases(only_taken), biases(skipping));
}

TEST_F(OneOfTwoGroupsTest, FailsInThatGroupOnly) {
  const int64_t slots = slots_for_one_group();
  TrainRun run(world(), fixed(slots, OnOverflow::kFail));
  // The other group must not be left in a collective of the world: only the forward of the first
  // layers is of the group alone, so here each group prepares by itself.
  ep::Session& session = run.trainer.capacity().session();
  const bool first = run.trainer.topology().dp_rank() == 0;
  const Tensor gate = Tensor::zeros(run.ctx, {32, 2}, DType::kF32);
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < 32; ++t) {
    ids.push_back(first ? 0 : t % 8);
    ids.push_back(first ? 1 : (t + 1) % 8);
  }
  const Tensor idx = Tensor::from<int32_t>(run.ctx, {32, 2}, ids);
  bool thrown = false;
  try {
    session.prepare({.topk_idx = idx, .gate = gate});
  } catch (const ep::OverflowError& error) {
    thrown = true;
    const std::string text = error.what();
    EXPECT_NE(text.find(str("rank 0 demand ", ep() * 64)), std::string::npos) << text;
  }
  EXPECT_EQ(thrown, first);
  EXPECT_EQ(session.live_handles(), 0);
}

}  // namespace
}  // namespace spillway::train
