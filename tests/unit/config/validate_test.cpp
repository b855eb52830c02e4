// What is accepted, what is warned of, and what follows from a config.

#include "spillway/config/validate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/plan/sizing.h"
#include "support.h"

namespace spillway::config {
namespace {

struct Good {
  const char* name;
  std::vector<std::string> assignments;
  int64_t world = 4;
  bool accept_cuda = false;
};
class GoodConfigs : public ::testing::TestWithParam<Good> {};

TEST_P(GoodConfigs, PassWithoutWarning) {
  const Good& row = GetParam();
  std::vector<std::string> warnings;
  ASSERT_NO_THROW(warnings = validate(good_config(row.assignments), row.world,
                                      {.accept_cuda = row.accept_cuda}));
  EXPECT_TRUE(warnings.empty()) << warnings.front();
}

INSTANTIATE_TEST_SUITE_P(
    Limits, GoodConfigs,
    ::testing::Values(
        Good{"dp_2", {}, 8}, Good{"ep_1", {"parallel.ep=1"}, 3},
        Good{"one_rank_self", {"parallel.ep=1", "parallel.transport=self"}, 1},
        Good{"cuda_to_look_at", {"run.device=cuda"}, 4, true},
        Good{"dense_model", {"moe.experts=0", "moe.top_k=0"}},
        Good{"all_layers_dense", {"model.first_dense_layers=3"}},
        Good{"every_expert", {"moe.top_k=8"}},
        Good{"top_1_not_normalised", {"moe.top_k=1", "moe.router.normalize_topk=false"}},
        Good{"seq_is_max", {"data.seq=64"}}, Good{"beta_0", {"optim.beta1=0", "optim.beta2=0"}},
        Good{"no_clip", {"optim.clip=0"}}, Good{"head_dim_free", {"model.head_dim=6"}},
        Good{"hidden_not_split_but_head_dim", {"model.hidden=33", "model.head_dim=8"}},
        Good{"token_files_of_a_small_vocabulary", {"data.format=u16", "model.vocab_size=1"}},
        Good{"no_replica_check", {"train.check_replicas=0"}},
        // Not a multiple of the alignment, but not in force either.
        Good{"fixed_slots_unused", {"capacity.fixed.slots=7"}},
        Good{"initial_of_a_policy_that_holds",
             {"capacity.policy=factor", "capacity.initial={\"factor\":9}",
              "capacity.warmup_steps=1000"}},
        Good{"max_bytes_just_enough", {"capacity.max_bytes=101376"}},
        Good{"max_bytes_of_fixed",
             {"capacity.policy=fixed", "capacity.fixed.slots=64", "capacity.max_bytes=25344"}},
        Good{"max_bytes_counts_moe_layers",
             {"model.first_dense_layers=2", "capacity.max_bytes=33792"}},
        Good{"max_bytes_of_a_dense_model", {"moe.experts=0", "capacity.max_bytes=1"}},
        Good{"groups_off", {"moe.router.groups=0", "moe.router.topk_groups=0"}},
        Good{"groups_and_bias",
             {"moe.router.score=sigmoid", "moe.experts=8", "moe.router.groups=4",
              "moe.router.topk_groups=2", "moe.router.bias_update_rate=0.001",
              "moe.router.aux_loss=sequence"}},
        Good{"groups_and_bias_of_softmax",
             {"moe.experts=8", "moe.router.groups=2", "moe.router.bias_update_rate=0.001",
              "moe.router.aux_loss=global"}},
        Good{"region_moe", {"recompute.region=moe", "recompute.save=[\"dispatch\"]"}},
        Good{"order_of_drops",
             {"capacity.policy=factor", "capacity.on_overflow=drop", "ep.drop_order=score",
              "ep.renormalize_kept=true"}},
        Good{"order_of_drops_of_skip",
             {"capacity.policy=peak", "capacity.on_overflow=skip", "ep.drop_order=fair"}},
        Good{"order_of_drops_in_evaluation",
             {"capacity.policy=factor", "capacity.on_overflow=grow", "capacity.eval=same",
              "ep.drop_order=random", "ep.drop_seed=3"}},
        Good{"saves", {"recompute.region=layer", "recompute.save=[\"dispatch\",\"router\"]"}}),
    [](const auto& p) { return p.param.name; });

struct Warned {
  const char* name;
  std::vector<std::string> assignments;
  std::string path;
  std::vector<std::string> words;
  int64_t world = 4;
};
class Warnings : public ::testing::TestWithParam<Warned> {};

TEST_P(Warnings, NameThePathAndTheReason) {
  const Warned& row = GetParam();
  const std::vector<std::string> warnings = validate(good_config(row.assignments), row.world);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0].rfind(row.path + " ", 0), 0U) << warnings[0];
  expect_holds(warnings[0], row.words);
}

INSTANTIATE_TEST_SUITE_P(
    Findings, Warnings,
    ::testing::Values(
        Warned{"normalize_topk",
               {"moe.top_k=1"},
               "moe.router.normalize_topk",
               {"without effect", "top_k = 1"}},
        Warned{"softmax_before_topk",
               {"moe.router.score=sigmoid", "moe.router.softmax_before_topk=false"},
               "moe.router.softmax_before_topk",
               {"without effect", "sigmoid"}},
        // 128 tokens * 2 / 8 experts = 32 slots an expert, 2 experts a rank.
        Warned{"fixed_below_balanced",
               {"capacity.policy=fixed", "capacity.fixed.slots=56"},
               "capacity.fixed.slots",
               {"56", "64"}},
        Warned{"factor_below_1",
               {"capacity.policy=factor", "capacity.factor.factor=0.5"},
               "capacity.factor.factor",
               {"0.5"}},
        Warned{"policy_at_ep_1",
               {"parallel.ep=1", "capacity.policy=peak"},
               "capacity.policy",
               {"peak", "ep = 1"}},
        Warned{"optim_warmup",
               {"optim.warmup_steps=50"},
               "optim.warmup_steps",
               {"50", "train.steps = 50"}},
        Warned{"order_of_no_drops",
               {"ep.drop_order=fair", "capacity.policy=factor", "capacity.on_overflow=grow"},
               "ep.drop_order",
               {"fair", "without effect", "capacity.on_overflow"}},
        Warned{"order_with_room_for_all",
               {"ep.drop_order=score", "capacity.policy=worst_case", "capacity.on_overflow=drop"},
               "ep.drop_order",
               {"score", "without effect", "any routing"}},
        Warned{"renormalize_without_drops",
               {"ep.renormalize_kept=true", "capacity.policy=factor", "capacity.on_overflow=fail"},
               "ep.renormalize_kept",
               {"on any weight", "drops nothing", "gradients"}},
        Warned{"renormalize_at_top_1",
               {"ep.renormalize_kept=true", "capacity.policy=factor", "capacity.on_overflow=drop",
                "moe.top_k=1", "moe.router.normalize_topk=false"},
               "ep.renormalize_kept",
               {"top_k = 1", "constant in backward", "auxiliary terms only"}},
        Warned{"seed_of_no_random",
               {"ep.drop_seed=3"},
               "ep.drop_seed",
               {"3", "without effect", "tail"}},
        Warned{"saves_without_region",
               {"recompute.save=[\"dispatch\"]"},
               "recompute.save",
               {"without effect", "none"}},
        Warned{"region_moe_without_experts",
               {"recompute.region=moe", "model.first_dense_layers=3"},
               "recompute.region",
               {"without effect", "layer"}},
        Warned{"attention_outside_of_region_moe",
               {"recompute.region=moe", "recompute.save=[\"attention\"]"},
               "recompute.save",
               {"attention", "without effect", "moe"}},
        Warned{"capacity_warmup",
               {"capacity.policy=peak", "capacity.warmup_steps=50"},
               "capacity.warmup_steps",
               {"50", "train.steps = 50", "peak"}}),
    [](const auto& p) { return p.param.name; });

TEST(Validate, AWorldBelowOneIsTheCallersError) {
  EXPECT_THROW((void)validate(good_config(), 0), Error);
}

TEST(Validate, InfinityFromCodeIsRefused) {
  Config config = good_config();
  config.optim.lr = 1.0 / 0.0;
  expect_holds(refusal([&] { (void)validate(config, 4); }), {"optim.lr is inf", "a number > 0"});
}

TEST(WhatFollows, TheDecoderGetsItsThreeSections) {
  const model::DecoderConfig decoder = decoder_config(
      good_config({"model.first_dense_layers=1", "recompute.region=layer", "moe.ffn=24"}));
  EXPECT_EQ(decoder.model.hidden, 32);
  EXPECT_EQ(decoder.moe.ffn, 24);
  EXPECT_EQ(decoder.recompute.region, model::RecomputeRegion::kLayer);
  EXPECT_EQ(decoder.head_dim(), 8);
  EXPECT_EQ(decoder.moe_layers(), (std::vector<int64_t>{1, 2}));
}

TEST(WhatFollows, SizesOfAStep) {
  const Config config = good_config({"train.micro_batch=3", "train.grad_accum=5"});
  EXPECT_EQ(tokens_per_micro_batch(config), 96);
  EXPECT_EQ(sequences_per_step(config, 8), 120);
}

TEST(WhatFollows, LayerFactsAreThoseOfTheLargestMicroBatch) {
  const capacity::LayerFacts facts = layer_facts(good_config());
  EXPECT_EQ(facts.alignment, 8);
  EXPECT_EQ(facts.worst_case_slots, plan::worst_case_slots(128, 2, 2, 8));
  EXPECT_EQ(facts.balanced_slots, plan::balanced_slots(128, 2, 8, 2, 8));
  EXPECT_THROW((void)layer_facts(good_config({"moe.experts=0"})), Error);
}

TEST(WhatFollows, DtypeAndDevice) {
  EXPECT_EQ(compute_dtype(good_config()), DType::kF32);
  EXPECT_EQ(compute_dtype(good_config({"run.dtype=bf16"})), DType::kBF16);
  EXPECT_EQ(device(good_config()), Device::kCpu);
  EXPECT_EQ(device(good_config({"run.device=cpu"})), Device::kCpu);
  EXPECT_EQ(device(good_config({"run.device=cuda"})), Device::kCuda);
}

TEST(WhatFollows, EpLinesAreFullUpTo64Ranks) {
  EXPECT_TRUE(full_ep_lines(good_config(), 64));
  EXPECT_FALSE(full_ep_lines(good_config(), 65));
  EXPECT_TRUE(full_ep_lines(good_config({"log.ep=full"}), 65));
  EXPECT_FALSE(full_ep_lines(good_config({"log.ep=summary"}), 1));
}

}  // namespace
}  // namespace spillway::config
