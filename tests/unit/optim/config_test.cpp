#include "spillway/optim/config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::optim {
namespace {

struct FieldNames {
  std::vector<std::string> names;
  std::vector<std::string> choices;
  template <class T>
  void field(const char* name, T&) {
    names.emplace_back(name);
  }
  template <class T, class Choices>
  void choice(const char* name, T&, const Choices& allowed) {
    names.emplace_back(name);
    for (const auto& [text, value] : allowed) choices.emplace_back(text);
  }
};

TEST(OptimConfig, FieldListHasTheKeysOfTheSection) {
  OptimConfig config;
  FieldNames visitor;
  visit_fields(visitor, config);
  EXPECT_EQ(visitor.names,
            (std::vector<std::string>{"lr", "min_lr", "schedule", "warmup_steps", "beta1", "beta2",
                                      "eps", "weight_decay", "clip"}));
  EXPECT_EQ(visitor.choices, (std::vector<std::string>{"constant", "cosine", "wsd"}));
}

}  // namespace
}  // namespace spillway::optim
