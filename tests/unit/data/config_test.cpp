#include "spillway/data/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::data {
namespace {

struct FieldNames {
  std::vector<std::string> names;
  template <class T>
  void field(const char* name, T&) {
    names.emplace_back(name);
  }
  template <class T, class Choices>
  void choice(const char* name, T& value, const Choices& choices) {
    names.emplace_back(name);
    bool default_is_allowed = false;
    for (const auto& [text, allowed] : choices) default_is_allowed |= allowed == value;
    EXPECT_TRUE(default_is_allowed) << name;
  }
};

TEST(DataConfig, FieldListHasTheKeysOfTheSection) {
  DataConfig config;
  FieldNames visitor;
  visit_fields(visitor, config);
  EXPECT_EQ(visitor.names,
            (std::vector<std::string>{"train", "valid", "format", "seq", "shuffle"}));
}

TEST(DataConfig, Defaults) {
  const DataConfig config;
  EXPECT_TRUE(config.train.empty());
  EXPECT_TRUE(config.valid.empty());
  EXPECT_EQ(config.format, TokenFormat::kText);
  EXPECT_EQ(config.seq, 256);
  EXPECT_TRUE(config.shuffle);
}

TEST(DataConfig, TextIdsFitTheTextVocabulary) {
  EXPECT_EQ(kBeginToken, 256);
  EXPECT_EQ(kEndToken, 257);
  EXPECT_EQ(kTextVocabSize, 258);
}

TEST(DataConfig, AGoodOneOpensNoFile) {
  DataConfig config;
  config.train = {"/no/such/file"};
  config.valid = {"/no/such/file/either"};
  config.seq = 1;
  EXPECT_NO_THROW(validate(config));
}

struct BadConfig {
  const char* name;
  std::function<void(DataConfig&)> spoil;
  const char* key;
};
class DataConfigErrors : public ::testing::TestWithParam<BadConfig> {};
TEST_P(DataConfigErrors, NameTheKeyAndWhatIsAllowed) {
  DataConfig config;
  config.train = {"a"};
  GetParam().spoil(config);
  try {
    validate(config);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.rfind(GetParam().key, 0), 0U) << text;
    EXPECT_NE(text.find("allowed"), std::string::npos) << text;
    EXPECT_LT(text.size(), 300U);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Keys, DataConfigErrors,
    ::testing::Values(BadConfig{"no_train", [](DataConfig& c) { c.train.clear(); }, "data.train "},
                      BadConfig{"empty_path",
                                [](DataConfig& c) {
                                  c.train = {"a", ""};
                                },
                                "data.train[1] "},
                      BadConfig{"empty_valid_path", [](DataConfig& c) { c.valid = {""}; },
                                "data.valid[0] "},
                      BadConfig{"seq_0", [](DataConfig& c) { c.seq = 0; }, "data.seq "},
                      BadConfig{"seq_negative", [](DataConfig& c) { c.seq = -5; }, "data.seq "}),
    [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace spillway::data
