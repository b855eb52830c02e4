#include "spillway/runtime/context.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <climits>

#include <memory>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "support/throws.h"

namespace spillway {
namespace {

TEST(Context, DefaultsToOneThreadOfTheCpu) {
  const Context ctx;
  EXPECT_EQ(ctx.device(), Device::kCpu);
  EXPECT_EQ(ctx.num_threads(), 1);
}

TEST(Context, DeviceNames) {
  EXPECT_STREQ(device_name(Device::kCpu), "cpu");
  EXPECT_STREQ(device_name(Device::kCuda), "cuda");
}

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, AreWhatOpenMpUses) {
  const Context ctx(Device::kCpu, GetParam());
  EXPECT_EQ(ctx.num_threads(), GetParam());
  EXPECT_EQ(omp_get_max_threads(), GetParam());
  EXPECT_EQ(omp_get_dynamic(), 0);
}

INSTANTIATE_TEST_SUITE_P(Context, Threads, ::testing::Values(1, 2, 3),
                         ::testing::PrintToStringParamName());

class BadThreads : public ::testing::TestWithParam<int> {};

TEST_P(BadThreads, Throw) {
  EXPECT_TRUE(testing::throws_with<Error>(
      [] { Context ctx(Device::kCpu, GetParam()); },
      {"threads a rank: " + std::to_string(GetParam()) + ", at least 1 is needed"}));
}

INSTANTIATE_TEST_SUITE_P(Context, BadThreads, ::testing::Values(0, -1, INT_MIN),
                         [](const auto& test) { return "Case" + std::to_string(test.index); });

struct PlanA {
  int uses = 0;
};
struct PlanB {
  int uses = 100;
};

TEST(ContextCache, OneObjectAType) {
  Context ctx;
  PlanA& a = ctx.cache<PlanA>();
  EXPECT_EQ(a.uses, 0);
  a.uses = 7;
  EXPECT_EQ(ctx.cache<PlanB>().uses, 100);
  EXPECT_EQ(&ctx.cache<PlanA>(), &a);
  EXPECT_EQ(ctx.cache<PlanA>().uses, 7);
}

TEST(ContextCache, ContextsShareNothing) {
  Context first, second;
  first.cache<PlanA>().uses = 7;
  EXPECT_EQ(second.cache<PlanA>().uses, 0);
  EXPECT_NE(first.allocator(), second.allocator());
}

/// Holds a block, as a cached plan does, and gives it back when it goes.
struct BlockHolder {
  std::shared_ptr<Allocator> allocator;
  void* block = nullptr;
  int* destroyed = nullptr;
  ~BlockHolder() {
    if (block == nullptr) return;
    allocator->release(block, 100, Purpose::kWorkspace);
    ++*destroyed;
  }
};

TEST(ContextCache, ObjectsDieWithTheContext) {
  int destroyed = 0;
  std::shared_ptr<Allocator> allocator;
  {
    Context ctx;
    allocator = ctx.allocator();
    BlockHolder& holder = ctx.cache<BlockHolder>();
    holder.allocator = allocator;
    holder.block = allocator->allocate(100, Purpose::kWorkspace);
    holder.destroyed = &destroyed;
    EXPECT_EQ(allocator->total().current_bytes, 100);
  }
  EXPECT_EQ(destroyed, 1);
  EXPECT_EQ(allocator->total().current_bytes, 0);
}

}  // namespace
}  // namespace spillway
