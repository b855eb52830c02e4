// Replicas that drift apart end the job, naming parameter and ranks.
#include "spillway/train/replica_check.h"

#include "support/train_fixture.h"

namespace spillway::train {
namespace {

class ReplicaCheckTest : public TrainTest, public testing::WithParamInterface<Split> {
 protected:
  /// The error of this rank; empty when there was none.
  static std::string check(TrainRun& run) {
    try {
      check_replicas(run.trainer.parameters(), run.trainer.topology());
      return "";
    } catch (const CommError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kCommunication);
      return error.what();
    }
  }
  static void nudge(TrainRun& run, const std::string& name) {
    Tensor value = run.trainer.parameters().at(name).value;
    value.data<float>()[value.numel() - 1] += 1e-6F;
  }
};

constexpr const char* kDense = "model.layers.1.self_attn.q_proj.weight";
constexpr const char* kExpert = "model.layers.1.mlp.experts.down_proj";

TEST_P(ReplicaCheckTest, PassesWhileTrainingGoesWell) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  TrainRun run(*ranks, with_split(base_config(), GetParam(), 1, 1));
  EXPECT_EQ(check(run), "");
  train_steps(run, 1, 3);  // checks after every step
  EXPECT_EQ(check(run), "");
}

TEST_P(ReplicaCheckTest, NamesADenseParameterAndTheRank) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks || ranks->size() == 1) return;
  TrainRun run(*ranks, with_split(base_config(), GetParam(), 1, 1));
  const int last = ranks->size() - 1;
  if (ranks->rank() == last) nudge(run, kDense);
  const std::string text = check(run);
  EXPECT_NE(text.find(kDense), std::string::npos) << text;
  EXPECT_NE(text.find(str("world ranks 0 and ", last)), std::string::npos) << text;
}

TEST_P(ReplicaCheckTest, NamesAnExpertParameterAndTheWorldRanks) {
  const Split split = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks || split.dp == 1) return;
  TrainRun run(*ranks, with_split(base_config(), split, 1, 1));
  const int last = ranks->size() - 1;
  if (ranks->rank() == last) nudge(run, kExpert);
  const std::string text = check(run);
  // The ranks of the same EP index hold the same experts; the others have nothing to compare.
  const bool concerned = ranks->rank() % split.ep == last % split.ep;
  if (!concerned) {
    EXPECT_EQ(text, "");
    return;
  }
  EXPECT_NE(text.find(kExpert), std::string::npos) << text;
  EXPECT_NE(text.find(str("world ranks ", split.ep - 1, " and ", last)), std::string::npos) << text;
}

TEST_P(ReplicaCheckTest, ExpertsOfOneGroupMayDiffer) {
  const Split split = GetParam();
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  TrainRun run(*ranks, with_split(base_config(), split, 1, 1));
  // The same change on all replicas of the last EP index.
  if (ranks->rank() % split.ep == split.ep - 1) nudge(run, kExpert);
  EXPECT_EQ(check(run), "");
}

TEST_P(ReplicaCheckTest, StepComparesAsOftenAsTheConfigSays) {
  auto ranks = first_ranks(GetParam().world());
  if (!ranks || ranks->size() == 1) return;
  config::Config config = with_split(base_config(), GetParam(), 1, 1);
  config.train.check_replicas = 2;
  TrainRun run(*ranks, config);
  if (ranks->rank() == ranks->size() - 1) nudge(run, kDense);
  EXPECT_NO_THROW(run.trainer.step(1));
  EXPECT_THROW(run.trainer.step(2), CommError);
}

INSTANTIATE_TEST_SUITE_P(Splits, ReplicaCheckTest, testing::ValuesIn(all_splits()),
                         [](const auto& test) { return split_name(test.param); });

}  // namespace
}  // namespace spillway::train
