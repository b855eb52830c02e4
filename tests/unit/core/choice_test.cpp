#include "spillway/core/choice.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <utility>

namespace spillway {
namespace {

enum class Colour { kRed, kGreen, kBlue, kHidden };

constexpr std::array<std::pair<std::string_view, Colour>, 3> kColours{
    {{"red", Colour::kRed}, {"green", Colour::kGreen}, {"blue", Colour::kBlue}}};
constexpr std::array<std::pair<std::string_view, Colour>, 0> kNone{};

static_assert(choice_name(kColours, Colour::kGreen) == "green");

TEST(Choice, NameAndValueGoBothWays) {
  for (const auto& [name, value] : kColours) {
    Colour parsed = Colour::kHidden;
    EXPECT_TRUE(parse_choice(kColours, name, parsed)) << name;
    EXPECT_EQ(parsed, value) << name;
    EXPECT_EQ(choice_name(kColours, value), name);
  }
}

TEST(Choice, ValueOutsideTheArrayIsUnknown) {
  EXPECT_EQ(choice_name(kColours, Colour::kHidden), "unknown");
  EXPECT_EQ(choice_name(kNone, Colour::kRed), "unknown");
}

class BadChoice : public ::testing::TestWithParam<const char*> {};

TEST_P(BadChoice, LeavesTheValueAlone) {
  Colour value = Colour::kBlue;
  EXPECT_FALSE(parse_choice(kColours, GetParam(), value));
  EXPECT_EQ(value, Colour::kBlue);
}

INSTANTIATE_TEST_SUITE_P(Choice, BadChoice,
                         ::testing::Values("", "Red", "re", "redd", " red", "unknown"),
                         [](const auto& test) { return "Case" + std::to_string(test.index); });

TEST(Choice, ListHasAllNamesInOrder) {
  EXPECT_EQ(choice_list(kColours), "red, green, blue");
  EXPECT_EQ(choice_list(kNone), "");
}

}  // namespace
}  // namespace spillway
