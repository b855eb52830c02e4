// Functions that tell the workspace of a kernel, against what the allocator counts in a call.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "spillway/kernels/attention.h"
#include "spillway/kernels/rms_norm.h"

namespace spillway::kernels {
namespace {

/// Peak of workspace in `call`, with blocks of earlier calls not counted.
template <typename Call>
int64_t peak_workspace(Context& ctx, Call&& call) {
  ctx.allocator()->reset_peaks();
  call();
  return ctx.allocator()->use(Purpose::kWorkspace).peak_bytes;
}

struct Sizes {
  const char* name;
  AttentionSizes sizes;
};
class AttentionWorkspace : public ::testing::TestWithParam<std::tuple<Sizes, DType>> {};

TEST_P(AttentionWorkspace, IsWhatOneThreadTakes) {
  const AttentionSizes& s = std::get<0>(GetParam()).sizes;
  const DType dtype = std::get<1>(GetParam());
  Context ctx(Device::kCpu, 1);
  const Shape q_shape{s.batch, s.length, s.heads, s.head_dim};
  const Shape kv_shape{s.batch, s.length, s.kv_heads, s.head_dim};
  const Tensor q = Tensor::zeros(ctx, q_shape, dtype), k = Tensor::zeros(ctx, kv_shape, dtype);
  const Tensor v = Tensor::zeros(ctx, kv_shape, dtype), dout = Tensor::zeros(ctx, q_shape, dtype);
  Tensor out = Tensor::zeros(ctx, q_shape, dtype), dq = Tensor::zeros(ctx, q_shape, dtype);
  Tensor dk = Tensor::zeros(ctx, kv_shape, dtype), dv = Tensor::zeros(ctx, kv_shape, dtype);
  Tensor lse = Tensor::zeros(ctx, {s.batch, s.heads, s.length}, accumulator_dtype(dtype));
  EXPECT_EQ(peak_workspace(
                ctx, [&] { attention(ctx, {.q = q, .k = k, .v = v, .out = out, .lse = lse}); }),
            attention_workspace_bytes(s, dtype, 1));
  EXPECT_EQ(peak_workspace(ctx,
                           [&] {
                             attention_backward(ctx, {.dout = dout,
                                                      .q = q,
                                                      .k = k,
                                                      .v = v,
                                                      .out = out,
                                                      .lse = lse,
                                                      .dq = dq,
                                                      .dk = dk,
                                                      .dv = dv});
                           }),
            attention_backward_workspace_bytes(s, dtype, 1));
}

INSTANTIATE_TEST_SUITE_P(Sizes, AttentionWorkspace,
                         ::testing::Combine(::testing::Values(Sizes{"one_token", {1, 1, 1, 1, 2}},
                                                              Sizes{"short", {2, 17, 4, 2, 16}},
                                                              Sizes{"several_blocks",
                                                                    {1, 200, 4, 1, 32}}),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param).name) + "_" +
                                  std::string(dtype_name(std::get<1>(p.param)));
                         });

TEST(AttentionWorkspaceOfThreads, GrowsWithThreadsUpToTheNumberOfTasks) {
  const AttentionSizes sizes{2, 100, 4, 2, 16};  // 2 x 4 x 2 blocks, 2 x 2 kv heads
  const int64_t forward = attention_workspace_bytes(sizes, DType::kF32, 1);
  EXPECT_EQ(attention_workspace_bytes(sizes, DType::kF32, 3), 3 * forward);
  EXPECT_EQ(attention_workspace_bytes(sizes, DType::kF32, 99), 16 * forward);
  const int64_t backward = attention_backward_workspace_bytes(sizes, DType::kF32, 1);
  EXPECT_EQ(attention_backward_workspace_bytes(sizes, DType::kF32, 99), 4 * backward);
}

class RmsNormWorkspace : public ::testing::TestWithParam<std::tuple<int64_t, DType>> {};

TEST_P(RmsNormWorkspace, IsWhatBackwardTakes) {
  const auto [rows, dtype] = GetParam();
  constexpr int64_t kColumns = 48;
  Context ctx(Device::kCpu, 2);
  const DType acc = accumulator_dtype(dtype);
  const Tensor x = Tensor::zeros(ctx, {rows, kColumns}, dtype), dy = x;
  const Tensor w = Tensor::zeros(ctx, {kColumns}, dtype);
  const Tensor inv_rms = Tensor::zeros(ctx, {rows}, acc);
  Tensor dx = Tensor::zeros(ctx, {rows, kColumns}, dtype);
  Tensor dw = Tensor::zeros(ctx, {kColumns}, acc);
  EXPECT_EQ(
      peak_workspace(ctx,
                     [&] {
                       rms_norm_backward(
                           ctx, {.dy = dy, .x = x, .w = w, .inv_rms = inv_rms, .dx = dx, .dw = dw});
                     }),
      rms_norm_backward_workspace_bytes(rows, kColumns, dtype));
}

INSTANTIATE_TEST_SUITE_P(Rows, RmsNormWorkspace,
                         ::testing::Combine(::testing::Values(1, 17, 1024, 5000),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& p) {
                           return std::to_string(std::get<0>(p.param)) + "_" +
                                  std::string(dtype_name(std::get<1>(p.param)));
                         });

}  // namespace
}  // namespace spillway::kernels
