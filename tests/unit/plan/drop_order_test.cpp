#include "spillway/plan/drop_order.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace spillway::plan {
namespace {

class DropOrderNames : public testing::TestWithParam<std::pair<std::string_view, DropOrder>> {};

TEST_P(DropOrderNames, ReadBackAsWritten) {
  const auto& [name, order] = GetParam();
  EXPECT_EQ(drop_order_name(order), name);
  DropOrder parsed = order == DropOrder::kTail ? DropOrder::kScore : DropOrder::kTail;
  ASSERT_TRUE(parse_drop_order(name, parsed));
  EXPECT_EQ(parsed, order);
}

INSTANTIATE_TEST_SUITE_P(All, DropOrderNames, testing::ValuesIn(kDropOrderChoices),
                         [](const auto& test) { return std::string(test.param.first); });

TEST(DropOrder, AnUnknownNameChangesNothing) {
  for (const std::string_view name : {"", "Tail", "tails", "head"}) {
    DropOrder order = DropOrder::kRandom;
    EXPECT_FALSE(parse_drop_order(name, order)) << name;
    EXPECT_EQ(order, DropOrder::kRandom);
  }
}

}  // namespace
}  // namespace spillway::plan
