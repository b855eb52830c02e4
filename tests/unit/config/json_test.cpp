// JSON in and out: round trips, assignments, syntax, files.

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "support.h"

namespace spillway::config {
namespace {

class RoundTrip : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(RoundTrip, DumpParsesToTheSameDump) {
  const Config config = good_config(GetParam());
  const std::string dump = to_json_text(config);
  EXPECT_EQ(to_json_text(parse(dump)), dump);
  EXPECT_EQ(to_json_text(parse(to_json_text(config, -1))), dump);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, RoundTrip,
    ::testing::Values(
        std::vector<std::string>{},
        std::vector<std::string>{"capacity.initial={\"factor\":1.7}", "capacity.policy=peak"},
        std::vector<std::string>{"optim.lr=0.1", "optim.eps=1e-300", "optim.beta2=0.3333333333333"},
        std::vector<std::string>{"run.dir=r\xc3\xa9sultats/\\\"x\"", "data.valid=[\"a b\",\"c\"]"},
        std::vector<std::string>{"train.steps=9223372036854775807", "run.seed=0"},
        std::vector<std::string>{"run.device=cuda", "run.dtype=bf16", "log.level=off"},
        std::vector<std::string>{"model.rope_theta=1000000", "model.norm_eps=1e-5"},
        std::vector<std::string>{"parallel.zero=1", "capacity.shadow=[]", "log.trace=false"}));

TEST(RoundTrip, DoublesKeepEveryBit) {
  Config config;
  config.optim.lr = std::numeric_limits<double>::denorm_min();
  config.optim.beta1 = 0.1 + 0.2;
  config.model.rope_theta = std::numeric_limits<double>::max();
  const Config again = parse(to_json_text(config));
  EXPECT_EQ(again.optim.lr, config.optim.lr);
  EXPECT_EQ(again.optim.beta1, config.optim.beta1);
  EXPECT_EQ(again.model.rope_theta, config.model.rope_theta);
}

TEST(RoundTrip, ANegativeIndentIsOneLine) {
  EXPECT_EQ(to_json_text(Config{}, -1).find('\n'), std::string::npos);
}

TEST(RoundTrip, ParsedValuesReachTheStructs) {
  const Config config = parse(R"({
    "moe": {"router": {"aux_loss": "none", "normalize_topk": false}},
    "capacity": {"initial": {"factor": 3}, "on_overflow": "skip"},
    "recompute": {"region": "layer", "save": ["router"]},
    "log": {"level": "error", "ep": "full"}})");
  EXPECT_EQ(config.moe.router.aux_loss, moe::AuxLoss::kNone);
  EXPECT_FALSE(config.moe.router.normalize_topk);
  EXPECT_FALSE(config.capacity.initial.worst_case);
  EXPECT_EQ(config.capacity.initial.factor, 3.0);
  EXPECT_EQ(config.capacity.on_overflow, capacity::OnOverflow::kSkip);
  EXPECT_EQ(config.recompute.region, model::RecomputeRegion::kLayer);
  EXPECT_EQ(config.recompute.save, std::vector<std::string>{"router"});
  EXPECT_EQ(config.log.level, log::Level::kError);
  EXPECT_EQ(config.log.ep, EpLines::kFull);
}

TEST(Set, ReplacesAndAddsValuesOfEveryType) {
  const Config config =
      good_config({"model.hidden=64", "optim.lr=3e-4", "data.shuffle=false", "run.dir=\"a=b\"",
                   "data.train=[\"x\",\"y\"]", "capacity={\"policy\":\"fixed\"}",
                   "capacity.fixed.slots=128", "moe.router.force=balanced"});
  EXPECT_EQ(config.model.hidden, 64);
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.run.dir, "a=b");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(config.capacity.policy, "fixed");
  EXPECT_EQ(config.capacity.fixed.slots, 128);
  EXPECT_EQ(config.moe.router.force, moe::ForceRouting::kBalanced);
}

TEST(Set, ABareWordIsAString) {
  EXPECT_EQ(good_config({"run.dir=runs/x y"}).run.dir, "runs/x y");
  EXPECT_EQ(good_config({"run.dir=a=b"}).run.dir, "a=b");
  EXPECT_EQ(good_config({"run.dir="}).run.dir, "");
  EXPECT_EQ(good_config({"run.dir=2024-01-01"}).run.dir, "2024-01-01");
}

TEST(Set, TheLastOneWins) {
  EXPECT_EQ(good_config({"train.steps=5", "train.steps=6"}).train.steps, 6);
}

TEST(Set, AnUnknownPathIsFoundByTheStrictParse) {
  const std::string text = refusal([] { (void)good_config({"modle.hidden=64"}); });
  expect_holds(text, {"modle ", "did you mean \"model\""});
}

struct BadSet {
  const char* name;
  std::string assignment;
  std::vector<std::string> words;
};
class BadSets : public ::testing::TestWithParam<BadSet> {};

TEST_P(BadSets, AreRefused) {
  const std::string text = refusal([] { (void)apply_set(kGoodText, GetParam().assignment); });
  expect_holds(text, GetParam().words);
  expect_holds(text, {"allowed:"});
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BadSets,
    ::testing::Values(
        BadSet{"no_equals", "train.steps", {"--set", "train.steps", "PATH=VALUE"}},
        BadSet{"no_path", "=5", {"--set", "=5", "PATH=VALUE"}},
        BadSet{"empty", "", {"--set", "PATH=VALUE"}},
        BadSet{"two_dots", "train..steps=5", {"--set", "train..steps", "single dots"}},
        BadSet{"dot_first", ".train=5", {"--set", "single dots"}},
        BadSet{"dot_last", "train.=5", {"--set", "single dots"}},
        BadSet{"below_a_number", "model.hidden.x=5", {"model.hidden is 32", "an object"}},
        BadSet{"broken_object", "moe={\"experts\":", {"moe is {\"experts\":", "whole"}},
        BadSet{"broken_list", "data.train=[a.txt]", {"data.train is [a.txt]", "whole"}},
        BadSet{"broken_string", "run.dir=\"x", {"run.dir is \"x", "whole"}},
        BadSet{"duplicate", "moe={\"ffn\":1,\"ffn\":2}", {"moe.ffn", "given twice"}},
        BadSet{"number_out_of_range", "optim.lr=1e999", {"optim.lr is 1e999;", "at most 1.7e308"}},
        BadSet{"value_not_utf8", "run.dir=\xff", {"--set", "UTF-8"}},
        BadSet{"path_not_utf8", "\xff=1", {"--set", "UTF-8"}}),
    [](const auto& p) { return p.param.name; });

struct BadText {
  const char* name;
  std::string text;
  std::vector<std::string> words;
};
class BadTexts : public ::testing::TestWithParam<BadText> {};

TEST_P(BadTexts, AreRefusedByPlaceOrPath) {
  expect_holds(refusal([] { (void)parse(GetParam().text, "c.json"); }), GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(
    Syntax, BadTexts,
    ::testing::Values(
        BadText{"empty", "", {"c.json is not JSON", "line 1, column 1"}},
        BadText{"cut_off", "{\n\"run\": {", {"c.json is not JSON", "line 2"}},
        BadText{"comma", "{\n  \"run\": {},\n}", {"c.json is not JSON", "line 3, column 1"}},
        BadText{"comment", "{ // hidden\n}", {"c.json is not JSON", "line 1, column 3"}},
        BadText{"more_after_the_end", "{} {}", {"c.json is not JSON", "line 1, column 4"}},
        BadText{"nan", R"({"optim": {"lr": NaN}})", {"c.json is not JSON", "line 1"}},
        BadText{"not_utf8", "{\"run\": {\"dir\": \"\xff\"}}", {"c.json is not JSON", "UTF-8"}},
        BadText{"long_token", "{\"" + std::string(5000, 'x') + "\n", {"c.json is not JSON"}},
        BadText{"huge_number",
                R"({"optim": {"lr": 1e400}})",
                {"optim.lr is 1e400;", "at most 1.7e308"}},
        BadText{"list", "[1]", {"the config is [1]", "an object"}},
        BadText{"word", "\"x\"", {"the config is \"x\"", "an object"}},
        BadText{"too_deep", "{\"run\": " + std::string(100000, '['), {"run[", "too deep", "32"}}),
    [](const auto& p) { return std::string(p.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Duplicates, BadTexts,
    ::testing::Values(
        BadText{"section", R"({"run": {}, "run": {}})", {"run is given twice", "once"}},
        BadText{"key",
                R"({"model": {"hidden": 1, "layers": 2, "hidden": 1}})",
                {"model.hidden is given twice"}},
        BadText{"nested",
                R"({"moe": {"router": {"scale": 1, "scale": 1}}})",
                {"moe.router.scale is given twice"}},
        BadText{"in_a_list",
                R"({"capacity": {"shadow": [{}, {"q": 1, "q": 2}]}})",
                {"capacity.shadow[1].q is given twice"}},
        BadText{
            "escaped", R"({"run": {"dir": "a", "d\u0069r": "b"}})", {"run.dir is given twice"}}),
    [](const auto& p) { return std::string(p.param.name); });

TEST(Duplicates, TheSameKeyInTwoObjectsIsNone) {
  EXPECT_NO_THROW((void)parse(R"({"train": {"steps": 1}, "optim": {"warmup_steps": 1},
                                  "capacity": {"warmup_steps": 1}})"));
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("spillway_config_") + test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path folder_;
};

TEST_F(Files, AreReadAndThenAssigned) {
  const Config config = load(write("good.json", kGoodText), {"train.steps=9", "run.dir=runs/x"});
  EXPECT_EQ(config.model.hidden, 32);
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.run.dir, "runs/x");
}

TEST_F(Files, MayBeginWithAByteOrderMark) {
  EXPECT_EQ(load(write("bom.json", "\xef\xbb\xbf" + kGoodText)).model.hidden, 32);
}

TEST_F(Files, ThatAreMissingAreNamed) {
  expect_holds(refusal([] { (void)load("/no/such/config.json"); }),
               {"/no/such/config.json", "No such file", "a JSON file"});
}

TEST_F(Files, ThatAreDirectoriesAreNamed) {
  const std::string folder = folder_.string();
  expect_holds(refusal([&] { (void)load(folder); }), {folder, "is a directory"});
}

TEST_F(Files, SyntaxErrorsNameTheFileLineAndColumn) {
  const std::string path = write("bad.json", "{\n  \"run\": {\n    \"seed\" 1\n  }\n}\n");
  expect_holds(refusal([&] { (void)load(path); }), {"bad.json", "not JSON", "line 3, column 12"});
}

TEST_F(Files, AnEmptyFileIsNoJson) {
  const std::string path = write("empty.json", "");
  expect_holds(refusal([&] { (void)load(path); }), {"empty.json", "not JSON"});
}

}  // namespace
}  // namespace spillway::config
