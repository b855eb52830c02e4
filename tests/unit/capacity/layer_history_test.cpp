#include "spillway/capacity/layer_history.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/core/error.h"

namespace spillway::capacity {
namespace {

TEST(LayerHistory, IsEmptyAtFirst) {
  const LayerHistory history(3);
  EXPECT_TRUE(history.empty());
  EXPECT_EQ(history.max_of_last(3), 0);
}

TEST(LayerHistory, KeepsOnlyTheLastSteps) {
  LayerHistory history(3);
  for (const int64_t demand : {9, 1, 5, 2}) history.push(demand);
  EXPECT_EQ(history.size(), 3);
  EXPECT_EQ(history.demands(), (std::vector<int64_t>{1, 5, 2}));
}

TEST(LayerHistory, MaximumOfTheLastSteps) {
  LayerHistory history(4);
  for (const int64_t demand : {7, 1, 5, 2}) history.push(demand);
  EXPECT_EQ(history.max_of_last(1), 2);
  EXPECT_EQ(history.max_of_last(2), 5);
  EXPECT_EQ(history.max_of_last(4), 7);
  EXPECT_EQ(history.max_of_last(100), 7);
  EXPECT_EQ(history.max_of_last(0), 0);
}

TEST(LayerHistory, StaysBoundedOverALongRun) {
  LayerHistory history(16);
  for (int64_t step = 0; step < 10000; ++step) history.push(step);
  EXPECT_EQ(history.size(), 16);
  EXPECT_EQ(history.demands().front(), 10000 - 16);
}

TEST(LayerHistory, OfNoStepsKeepsNothing) {
  LayerHistory history(0);
  history.push(5);
  EXPECT_TRUE(history.empty());
}

TEST(LayerHistory, RejectsANegativeDemand) {
  LayerHistory history(3);
  EXPECT_THROW(history.push(-1), Error);
}

}  // namespace
}  // namespace spillway::capacity
