#include "spillway/config/resume_rules.h"

#include "support.h"

namespace spillway::config {
namespace {

std::string refused(const std::vector<std::string>& changes, int64_t world = 4) {
  return refusal([&] { check_resume(good_config(), 4, good_config(changes), world); });
}

TEST(ResumeRules, TheSameConfigGoesOn) {
  EXPECT_TRUE(key_changes(good_config(), good_config()).empty());
  EXPECT_NO_THROW(check_resume(good_config(), 4, good_config(), 4));
}

TEST(ResumeRules, NamesEveryChangedLeaf) {
  const auto changes =
      key_changes(good_config(), good_config({"train.steps=70", "moe.router.scale=2.5"}));
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].path, "moe.router.scale");
  EXPECT_EQ(changes[0].before, "1.0");
  EXPECT_EQ(changes[0].now, "2.5");
  EXPECT_EQ(changes[1].path, "train.steps");
}

class MayChange : public ::testing::TestWithParam<const char*> {};

TEST_P(MayChange, IsAccepted) {
  const Config now = good_config({GetParam()});
  EXPECT_FALSE(key_changes(good_config(), now).empty()) << "the case changes nothing";
  EXPECT_NO_THROW(check_resume(good_config(), 4, now, 4));
}

INSTANTIATE_TEST_SUITE_P(Keys, MayChange,
                         ::testing::Values("run.dir=elsewhere", "train.steps=70",
                                           "train.eval_every=5", "train.eval_steps=3",
                                           "checkpoint.every=7", "checkpoint.keep=5", "log.every=1",
                                           "log.metrics=m.jsonl", "capacity.policy=peak",
                                           "capacity.on_overflow=drop", "capacity.policy=fixed",
                                           "parallel.ep=2"));

class MayNotChange : public ::testing::TestWithParam<const char*> {};

TEST_P(MayNotChange, IsRefusedWithTheDiff) {
  const std::string assignment = GetParam();
  const std::string text = refused({assignment});
  expect_holds(text, {assignment.substr(0, assignment.find('='))});
  expect_holds(text, {"->"});
}

INSTANTIATE_TEST_SUITE_P(Keys, MayNotChange,
                         ::testing::Values("run.seed=2", "run.dtype=bf16", "model.hidden=64",
                                           "moe.top_k=1", "moe.router.aux_coef=0.5", "data.seq=16",
                                           "data.train=[\"b.txt\"]", "data.shuffle=false",
                                           "optim.lr=0.5", "optim.schedule=constant",
                                           "train.on_nonfinite=skip", "recompute.region=layer",
                                           "train.check_replicas=1"));

TEST(ResumeRules, ManyChangesStayOneShortLine) {
  const std::string text = refused({"run.seed=2", "model.hidden=64", "model.heads=8", "moe.ffn=32",
                                    "moe.experts=16", "optim.lr=0.5", "optim.beta1=0.5",
                                    "data.train=[\"" + std::string(400, 'x') + "\"]"});
  expect_holds(text, {"run.seed 1 -> 2"});
  expect_holds(text, {"train.steps"});
}

TEST(ResumeRules, TheGlobalBatchStays) {
  EXPECT_NO_THROW(
      check_resume(good_config(), 4, good_config({"train.micro_batch=2", "parallel.ep=2"}), 2));
  EXPECT_NO_THROW(
      check_resume(good_config(), 4, good_config({"train.grad_accum=4", "parallel.ep=1"}), 1));
  const std::string text = refused({"parallel.ep=2"}, 2);
  expect_holds(text, {"train.micro_batch"});
  expect_holds(text, {"a product of 4"});
  expect_holds(refused({"train.grad_accum=2"}), {"8 sequences"});
}

}  // namespace
}  // namespace spillway::config
