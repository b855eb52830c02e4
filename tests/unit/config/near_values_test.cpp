// Names of choices that are nearly right: the right one is suggested.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bad_value.h"

namespace spillway::config {
namespace {

struct Near {
  const char* name;
  std::string assignment;
  std::string path;
  std::string suggestion;  ///< empty: nothing is near
};
class NearValues : public ::testing::TestWithParam<Near> {};

TEST_P(NearValues, AreSuggested) {
  const std::string text = refusal([] { (void)validate(good_config({GetParam().assignment}), 4); });
  expect_holds(text, {GetParam().path + " is ", "allowed: "});
  const std::string& suggestion = GetParam().suggestion;
  EXPECT_EQ(text.find("did you mean") != std::string::npos, !suggestion.empty()) << text;
  if (!suggestion.empty()) expect_holds(text, {"did you mean \"" + suggestion + "\"? allowed: "});
}

INSTANTIATE_TEST_SUITE_P(
    Names, NearValues,
    ::testing::Values(
        Near{"dtype", "run.dtype=bf_16", "run.dtype", "bf16"},
        Near{"device", "run.device=gpu", "run.device", "cpu"},
        Near{"case", "capacity.on_overflow=Drop", "capacity.on_overflow", "drop"},
        Near{"on_overflow", "capacity.on_overflow=dorp", "capacity.on_overflow", "drop"},
        Near{"qk_norm", "model.qk_norm=heads", "model.qk_norm", "head"},
        Near{"aux_loss", "moe.router.aux_loss=swich", "moe.router.aux_loss", "switch"},
        Near{"score", "moe.router.score=sigmod", "moe.router.score", "sigmoid"},
        Near{"format", "data.format=u-16", "data.format", "u16"},
        Near{"schedule", "optim.schedule=cosin", "optim.schedule", "cosine"},
        Near{"region", "recompute.region=layers", "recompute.region", "layer"},
        Near{"region_moe", "recompute.region=mow", "recompute.region", "moe"},
        Near{"drop_order", "ep.drop_order=fare", "ep.drop_order", "fair"},
        Near{"drop_order_far", "ep.drop_order=best", "ep.drop_order", ""},
        Near{"level", "log.level=warn", "log.level", ""},
        Near{"policy", "capacity.policy=pek", "capacity.policy", "peak"},
        Near{"policy_word", "capacity.policy=worst-case", "capacity.policy", "worst_case"},
        Near{"policy_far", "capacity.policy=biggest", "capacity.policy", ""},
        Near{"policy_to_come", "capacity.policy=tutel", "capacity.policy", ""},
        Near{"save", "recompute.save=[\"experts_up\"]", "recompute.save[0]", "expert_up"},
        Near{"save_far", "recompute.save=[\"everything\"]", "recompute.save[0]", ""},
        Near{"no_word", "run.dtype=16", "run.dtype", ""},
        Near{"empty", "run.dtype=", "run.dtype", ""}),
    [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace spillway::config
