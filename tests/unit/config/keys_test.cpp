// Every documented key is accepted at a documented value, and the lists agree.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "spillway/config/validate.h"
#include "support.h"

namespace spillway::config {
namespace {

struct Key {
  const char* path;
  const char* value;
  bool has_field = true;  ///< false: known at its neutral value only
};

// The table of config keys of the documentation.
const std::vector<Key> kKeys{
    {"run.dir", "\"runs/x\""},
    {"run.seed", "17"},
    {"run.device", "\"cpu\""},
    {"run.dtype", "\"bf16\""},
    {"run.deterministic", "true"},
    {"model.vocab_size", "300"},
    {"model.hidden", "64"},
    {"model.layers", "5"},
    {"model.heads", "8"},
    {"model.kv_heads", "1"},
    {"model.head_dim", "10"},
    {"model.max_seq", "128"},
    {"model.rope_theta", "500000.0"},
    {"model.norm_eps", "1e-5"},
    {"model.qk_norm", "\"full\""},
    {"model.tie_embeddings", "true"},
    {"model.first_dense_layers", "1"},
    {"model.dense_ffn", "96"},
    {"moe.experts", "16"},
    {"moe.top_k", "3"},
    {"moe.ffn", "24"},
    {"moe.shared_experts", "1"},
    {"moe.alignment", "16"},
    {"moe.router.score", "\"sigmoid\""},
    {"moe.router.softmax_before_topk", "false"},
    {"moe.router.normalize_topk", "false"},
    {"moe.router.scale", "2.5"},
    {"moe.router.groups", "4"},
    {"moe.router.topk_groups", "0"},
    {"moe.router.bias_update_rate", "0.001"},
    {"moe.router.aux_loss", "\"sequence\""},
    {"moe.router.aux_coef", "0.5"},
    {"moe.router.z_coef", "0"},
    {"moe.router.force", "\"balanced\""},
    {"parallel.ep", "2"},
    {"parallel.transport", "\"mpi\""},
    {"parallel.zero", "1"},
    {"ep.drop_order", "\"score\""},
    {"ep.drop_seed", "5"},
    {"ep.fused_prepare", "true"},
    {"ep.renormalize_kept", "true"},
    {"ep.poison", "true"},
    {"capacity.policy", "\"peak\""},
    {"capacity.worst_case", "{}", false},
    {"capacity.fixed.slots", "1024"},
    {"capacity.factor.factor", "1.25"},
    {"capacity.peak.window_steps", "32"},
    {"capacity.peak.margin", "0.2"},
    {"capacity.peak.shrink_patience", "4"},
    {"capacity.quantile", "{}", false},
    {"capacity.ewma", "{}", false},
    {"capacity.aimd", "{}", false},
    {"capacity.tutel", "{}", false},
    {"capacity.megatron", "{}", false},
    {"capacity.budget", "{}", false},
    {"capacity.cost", "{}", false},
    {"capacity.scope", "\"model\""},
    {"capacity.on_overflow", "\"grow\""},
    {"capacity.initial", "{\"factor\":1.5}"},
    {"capacity.warmup_steps", "3"},
    {"capacity.interval", "2"},
    {"capacity.min_slots", "64"},
    {"capacity.max_bytes", "1000000000000"},
    {"capacity.grow_margin", "0.25"},
    {"capacity.eval", "\"same\""},
    {"capacity.reconfigure", "\"communicator\""},
    {"capacity.shadow", "[]", false},
    {"recompute.region", "\"moe\""},
    {"recompute.save", "[\"dispatch\",\"attention\"]"},
    {"data.train", "[\"a\",\"b\"]"},
    {"data.valid", "[\"c\"]"},
    {"data.format", "\"text\""},
    {"data.seq", "16"},
    {"data.shuffle", "false"},
    {"optim.lr", "0.5"},
    {"optim.min_lr", "0.0"},
    {"optim.schedule", "\"wsd\""},
    {"optim.warmup_steps", "1"},
    {"optim.beta1", "0.0"},
    {"optim.beta2", "0.99"},
    {"optim.eps", "1e-10"},
    {"optim.weight_decay", "0.0"},
    {"optim.clip", "0.0"},
    {"train.steps", "7"},
    {"train.micro_batch", "3"},
    {"train.grad_accum", "2"},
    {"train.eval_every", "10"},
    {"train.eval_steps", "1"},
    {"train.on_nonfinite", "\"skip\""},
    {"train.check_replicas", "0"},
    {"checkpoint.every", "0"},
    {"checkpoint.keep", "3"},
    {"checkpoint.resume", "\"none\""},
    {"log.every", "0"},
    {"log.metrics", "\"m.jsonl\""},
    {"log.ep", "\"summary\""},
    {"log.trace", "false", false},
    {"log.level", "\"debug\""},
};

nlohmann::json resolved(const Config& config) {
  return nlohmann::json::parse(to_json_text(config));
}

nlohmann::json::json_pointer pointer(std::string path) {
  for (char& c : path) c = c == '.' ? '/' : c;
  return nlohmann::json::json_pointer("/" + path);
}

class DocumentedKeys : public ::testing::TestWithParam<Key> {};

TEST_P(DocumentedKeys, AreAcceptedAndReachTheResolvedConfig) {
  const Key& key = GetParam();
  Config config;
  ASSERT_NO_THROW(config = good_config({std::string(key.path) + "=" + key.value}));
  EXPECT_NO_THROW((void)validate(config, 4));
  const nlohmann::json dump = resolved(config);
  ASSERT_EQ(dump.contains(pointer(key.path)), key.has_field);
  if (!key.has_field) return;
  EXPECT_EQ(dump.at(pointer(key.path)), nlohmann::json::parse(key.value));
}

INSTANTIATE_TEST_SUITE_P(Table, DocumentedKeys, ::testing::ValuesIn(kKeys), [](const auto& p) {
  std::string name = p.param.path;
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
});

void collect(const nlohmann::json& node, const std::string& path, std::set<std::string>& paths) {
  if (!node.is_object()) {
    paths.insert(path);
    return;
  }
  for (const auto& [key, value] : node.items()) {
    collect(value, path.empty() ? key : path + "." + key, paths);
  }
}

TEST(Keys, TheResolvedConfigHasNoKeyBeyondTheTable) {
  std::set<std::string> documented;
  for (const Key& key : kKeys) {
    if (key.has_field) documented.insert(key.path);
  }
  std::set<std::string> dumped;
  collect(resolved(Config{}), "", dumped);
  EXPECT_EQ(dumped, documented);
}

TEST(Keys, TheResolvedConfigKeepsTheOrderOfTheSections) {
  const auto json = nlohmann::ordered_json::parse(to_json_text(Config{}));
  std::vector<std::string> sections;
  for (const auto& [key, value] : json.items()) sections.push_back(key);
  EXPECT_EQ(sections,
            (std::vector<std::string>{"run", "model", "moe", "parallel", "ep", "capacity",
                                      "recompute", "data", "optim", "train", "checkpoint", "log"}));
}

TEST(Keys, AnEmptyConfigHasTheDefaults) {
  const Config config = parse("{}");
  EXPECT_EQ(to_json_text(config), to_json_text(Config{}));
  EXPECT_EQ(config.run.device, DeviceChoice::kAuto);
  EXPECT_EQ(config.parallel.ep, 1);
  EXPECT_EQ(config.capacity.policy, "worst_case");
  EXPECT_EQ(config.capacity.warmup_steps, 20);
  EXPECT_EQ(config.capacity.interval, 1);
  EXPECT_EQ(config.capacity.min_slots, 0);
  EXPECT_EQ(config.train.eval_every, 0);
  EXPECT_EQ(config.train.check_replicas, 100);
  EXPECT_EQ(config.train.on_nonfinite, OnNonfinite::kStop);
  EXPECT_EQ(config.checkpoint.resume, "none");
  EXPECT_EQ(config.log.metrics, "metrics.jsonl");
  EXPECT_EQ(config.log.ep, EpLines::kAuto);
}

TEST(Keys, AnEmptySectionHasTheDefaults) {
  EXPECT_EQ(to_json_text(parse(R"({"moe": {"router": {}}, "log": {}})")), to_json_text(Config{}));
}

TEST(Keys, TheDefaultsAreValidOnceThereIsData) {
  Config config;
  config.data.train = {"a.txt"};
  EXPECT_TRUE(validate(config, 1).empty());
}

struct Unknown {
  const char* name;
  const char* text;
  std::vector<std::string> words;
  bool hint = true;
};
class UnknownKeys : public ::testing::TestWithParam<Unknown> {};

TEST_P(UnknownKeys, AreRefusedWithTheNearestName) {
  const std::string text = refusal([] { (void)parse(GetParam().text); });
  expect_holds(text, GetParam().words);
  expect_holds(text, {"no known key", "allowed: "});
  EXPECT_EQ(text.find("did you mean") != std::string::npos, GetParam().hint) << text;
}

INSTANTIATE_TEST_SUITE_P(
    Spellings, UnknownKeys,
    ::testing::Values(
        Unknown{"hiden", R"({"model": {"hiden": 64}})", {"model.hiden ", "64", "\"hidden\""}},
        Unknown{"topk", R"({"moe": {"topk": 2}})", {"moe.topk ", "2", "\"top_k\""}},
        Unknown{"on_overflw",
                R"({"capacity": {"on_overflw": "drop"}})",
                {"capacity.on_overflw ", "\"drop\"", "\"on_overflow\""}},
        Unknown{"section", R"({"modle": {}})", {"modle ", "{}", "\"model\""}},
        Unknown{
            "nested", R"({"moe": {"router": {"zcoef": 1}}})", {"moe.router.zcoef ", "\"z_coef\""}},
        Unknown{"policy_key",
                R"({"capacity": {"peak": {"margins": 1}}})",
                {"capacity.peak.margins ", "\"margin\""}},
        Unknown{"of_a_later_key", R"({"log": {"trase": false}})", {"log.trase ", "\"trace\""}},
        Unknown{"case", R"({"train": {"Steps": 3}})", {"train.Steps ", "\"steps\""}},
        Unknown{"nothing_near", R"({"model": {"dropout": 0.1}})", {"model.dropout ", "0.1"}, false},
        Unknown{"short_names_are_not_guessed",
                R"({"parallel": {"dp": 2, "tp": 1}})",
                {"parallel.dp ", "\"ep\""}},
        Unknown{"two_letters_off_of_two", R"({"parallel": {"lr": 2}})", {"parallel.lr "}, false},
        Unknown{"empty_name", R"({"run": {"": 1}})", {"run. "}, false},
        Unknown{"other_section", R"({"run": {"hidden": 1}})", {"run.hidden "}, false},
        Unknown{"control_characters", R"({"run": {"a\nb": 1}})", {"run.a b "}, false}),
    [](const auto& p) { return p.param.name; });

TEST(UnknownKeys, LongNamesAreCut) {
  const std::string text =
      refusal([] { (void)parse(R"({"run": {")" + std::string(100000, 'k') + R"(": 1}})"); });
  expect_holds(text, {"run.kkk", "...", "allowed: dir, seed, device, dtype, deterministic"});
}

}  // namespace
}  // namespace spillway::config
