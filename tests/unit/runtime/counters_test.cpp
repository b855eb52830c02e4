#include "spillway/runtime/counters.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace spillway {
namespace {

using Field = std::pair<std::string, int64_t CounterSet::*>;

std::vector<Field> fields() {
  return {{"prepares", &CounterSet::prepares},
          {"fused_prepares", &CounterSet::fused_prepares},
          {"forward_dispatches", &CounterSet::forward_dispatches},
          {"combines", &CounterSet::combines},
          {"backward_transports", &CounterSet::backward_transports},
          {"host_syncs", &CounterSet::host_syncs},
          {"all_to_all_bytes", &CounterSet::all_to_all_bytes}};
}

TEST(Counters, EveryFieldIsTested) {
  EXPECT_EQ(fields().size() * sizeof(int64_t), sizeof(CounterSet));
}

class Counter : public ::testing::TestWithParam<Field> {
 protected:
  int64_t CounterSet::*field_ = GetParam().second;
  Counters counters_;
};

TEST_P(Counter, AddsToItsFieldAlone) {
  counters_.add(field_);
  counters_.add(field_, 41);
  CounterSet wanted;
  wanted.*field_ = 42;
  EXPECT_EQ(counters_.total(), wanted);
  EXPECT_EQ(counters_.backward(), CounterSet{});
}

TEST_P(Counter, BackwardIsAPartOfTheTotal) {
  counters_.add(field_, 5);
  EXPECT_FALSE(counters_.set_in_backward(true));
  counters_.add(field_, 3);
  EXPECT_TRUE(counters_.set_in_backward(false));
  counters_.add(field_, 1);
  EXPECT_EQ(counters_.total().*field_, 9);
  CounterSet wanted;
  wanted.*field_ = 3;
  EXPECT_EQ(counters_.backward(), wanted);
}

TEST_P(Counter, CountsNothingWhileDisabled) {
  EXPECT_TRUE(counters_.set_enabled(false));
  counters_.set_in_backward(true);
  counters_.add(field_, 5);
  EXPECT_EQ(counters_.total(), CounterSet{});
  EXPECT_EQ(counters_.backward(), CounterSet{});
  EXPECT_FALSE(counters_.set_enabled(true));
  counters_.add(field_, 2);
  EXPECT_EQ(counters_.total().*field_, 2);
  EXPECT_EQ(counters_.backward().*field_, 2);
}

INSTANTIATE_TEST_SUITE_P(Counters, Counter, ::testing::ValuesIn(fields()),
                         [](const auto& test) { return test.param.first; });

TEST(Counters, ResetClearsSumsAndKeepsTheMode) {
  Counters counters;
  counters.set_in_backward(true);
  counters.add(&CounterSet::combines, 4);
  counters.reset();
  EXPECT_EQ(counters.total(), CounterSet{});
  EXPECT_EQ(counters.backward(), CounterSet{});
  counters.add(&CounterSet::combines);
  EXPECT_EQ(counters.backward().combines, 1) << "still in backward";
}

}  // namespace
}  // namespace spillway
