// Who keeps memory, and for how long.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "spillway/tensor/tensor.h"

namespace spillway {
namespace {

TEST(Storage, BytesReturnWithTheLastTensor) {
  Context ctx;
  const Allocator& allocator = *ctx.allocator();
  std::optional<Tensor> part;
  {
    const Tensor t = Tensor::empty(ctx, {10, 4}, DType::kF32, Purpose::kReceive);
    part = t.rows(2, 3);
  }
  EXPECT_EQ(allocator.use(Purpose::kReceive).current_bytes, 160) << "one row keeps the whole block";
  part.reset();
  EXPECT_EQ(allocator.use(Purpose::kReceive).current_bytes, 0);
  EXPECT_EQ(allocator.use(Purpose::kReceive).peak_bytes, 160);
}

TEST(Storage, AssignmentReleasesTheFormerBlock) {
  Context ctx;
  Tensor t = Tensor::empty(ctx, {100}, DType::kF32);
  t = Tensor::empty(ctx, {10}, DType::kF32);
  EXPECT_EQ(ctx.allocator()->total().current_bytes, 40);
  t = Tensor();
  EXPECT_EQ(ctx.allocator()->total().current_bytes, 0);
}

TEST(Storage, TensorOutlivesItsContext) {
  Tensor t;
  std::weak_ptr<Allocator> allocator;
  {
    Context ctx;
    allocator = ctx.allocator();
    t = Tensor::zeros(ctx, {1000}, DType::kF32);
  }
  ASSERT_FALSE(allocator.expired());
  for (float& value : t.span<float>()) value += 1.0F;
  EXPECT_EQ(t.data<float>()[999], 1.0F);
  EXPECT_EQ(allocator.lock()->total().current_bytes, 4000);
  t = Tensor();
  EXPECT_TRUE(allocator.expired()) << "the last tensor took the allocator along";
}

TEST(Storage, NextTensorOfTheSizeReusesTheBlock) {
  Context ctx;
  const void* former = Tensor::empty(ctx, {50, 20}, DType::kF32).raw_data();
  const Tensor t = Tensor::empty(ctx, {1000}, DType::kI32, Purpose::kData);
  EXPECT_EQ(t.raw_data(), former);
}

}  // namespace
}  // namespace spillway
