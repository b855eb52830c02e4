#include "spillway/kernels/rows.h"

#include <gtest/gtest.h>

#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::all_near;
using testing::Guarded;
using testing::matrix_case_name;
using testing::matrix_cases;
using testing::MatrixCase;
using testing::random_tensor;
using testing::same_bytes;
using testing::tensor_of;
using testing::throws_with;

constexpr int64_t kRemoteRows = 5, kLocalRows = 9, kTopK = 3;

class Rows : public ::testing::TestWithParam<MatrixCase> {
 protected:
  /// [rows, kTopK] of entries in [least, limit).
  Tensor random_map(int64_t least, int64_t limit) {
    Tensor map = Tensor::empty(ctx_, {rows_, kTopK}, DType::kI32);
    Rng rng(5);
    for (int32_t& entry : map.span<int32_t>()) {
      entry = static_cast<int32_t>(least) +
              static_cast<int32_t>(rng.below(static_cast<uint64_t>(limit - least)));
    }
    return map;
  }
  Context ctx_{Device::kCpu, 2};
  int64_t rows_ = GetParam().rows, hidden_ = GetParam().cols;
  DType dtype_ = GetParam().dtype;
};

TEST_P(Rows, GatherRowsLeavesTheRest) {
  const Tensor x = random_tensor(ctx_, {kLocalRows, hidden_}, dtype_, 1);
  const Tensor index = random_map(0, kLocalRows).view({rows_ * kTopK});
  Guarded out(ctx_, {index.numel() + 2, hidden_}, dtype_);
  copy(random_tensor(ctx_, out.tensor.shape(), dtype_, 2), out.tensor);
  const Tensor before = out.tensor.clone(ctx_);
  gather_rows(ctx_, x, index, out.tensor);
  for (int64_t i = 0; i < index.numel(); ++i) {
    const int64_t from = index.data<int32_t>()[i];
    EXPECT_TRUE(same_bytes(out.tensor.rows(i, i + 1), x.rows(from, from + 1))) << i;
  }
  const int64_t end = out.tensor.dim(0);
  EXPECT_TRUE(same_bytes(out.tensor.rows(end - 2, end), before.rows(end - 2, end)));
  EXPECT_TRUE(out.intact());
}

TEST_P(Rows, GatherScalars) {
  const Tensor x = random_tensor(ctx_, {kLocalRows, hidden_}, dtype_, 3);
  const Tensor index = random_map(0, x.numel()).view({rows_ * kTopK});
  Guarded out(ctx_, {index.numel()}, dtype_);
  gather_scalars(ctx_, x, index, out.tensor);
  for (int64_t i = 0; i < index.numel(); ++i) {
    EXPECT_EQ(testing::element(out.tensor, i), testing::element(x, index.data<int32_t>()[i])) << i;
  }
  EXPECT_TRUE(out.intact());
}

TEST_P(Rows, SumRowsOfBothBuffers) {
  const Tensor remote = random_tensor(ctx_, {kRemoteRows, hidden_}, dtype_, 4);
  const Tensor local = random_tensor(ctx_, {kLocalRows, hidden_}, dtype_, 5);
  const Tensor map = random_map(-1, kRemoteRows + kLocalRows);
  Guarded out(ctx_, {rows_, hidden_}, dtype_);
  sum_rows(ctx_, map, remote, local, out.tensor);
  // The reference in the accumulator dtype and in k order: equal bits.
  Tensor wanted = Tensor::empty(ctx_, {rows_, hidden_}, dtype_);
  for (int64_t t = 0; t < rows_; ++t) {
    for (int64_t i = 0; i < hidden_; ++i) {
      double sum = 0.0;
      for (int64_t k = 0; k < kTopK; ++k) {
        const int64_t m = map.data<int32_t>()[t * kTopK + k];
        if (m < 0) continue;
        sum += m < kRemoteRows ? testing::element(remote, m * hidden_ + i)
                               : testing::element(local, (m - kRemoteRows) * hidden_ + i);
        if (dtype_ != DType::kF64) sum = static_cast<float>(sum);
      }
      testing::set_element(wanted, t * hidden_ + i, sum);
    }
  }
  EXPECT_TRUE(same_bytes(out.tensor, wanted));
  EXPECT_TRUE(out.intact());

  Context one;
  Tensor alone = Tensor::empty(ctx_, wanted.shape(), dtype_);
  sum_rows(one, map, remote, local, alone);
  EXPECT_TRUE(same_bytes(alone, wanted));
}

TEST_P(Rows, SumRowsWithoutRemote) {
  const Tensor remote = Tensor::empty(ctx_, {0, hidden_}, dtype_);
  const Tensor local = random_tensor(ctx_, {kLocalRows, hidden_}, dtype_, 6);
  Tensor map = random_map(0, kLocalRows);
  for (int64_t t = 0; t < rows_; ++t) {
    map.data<int32_t>()[t * kTopK] = -1;
    map.data<int32_t>()[t * kTopK + 2] = -1;
  }
  Guarded out(ctx_, {rows_, hidden_}, dtype_);
  sum_rows(ctx_, map, remote, local, out.tensor);
  for (int64_t t = 0; t < rows_; ++t) {
    const int64_t from = map.data<int32_t>()[t * kTopK + 1];
    EXPECT_TRUE(same_bytes(out.tensor.rows(t, t + 1), local.rows(from, from + 1))) << t;
  }
  EXPECT_TRUE(out.intact());
}

TEST_P(Rows, TokensWithoutRowsGetZeros) {
  const Tensor buffer = random_tensor(ctx_, {2, hidden_}, dtype_, 7);
  Tensor map = Tensor::empty(ctx_, {rows_, kTopK}, DType::kI32);
  for (int32_t& entry : map.span<int32_t>()) entry = -1;
  Tensor out = random_tensor(ctx_, {rows_, hidden_}, dtype_, 8);
  sum_rows(ctx_, map, buffer, buffer, out);
  EXPECT_TRUE(same_bytes(out, Tensor::zeros(ctx_, out.shape(), dtype_)));
}

// A token's rows are added in registers or block by block, whatever their number the same sum.
TEST_P(Rows, SumRowsOfAnyTopK) {
  const Tensor remote = random_tensor(ctx_, {3, hidden_}, dtype_, 11);
  const Tensor local = random_tensor(ctx_, {4, hidden_}, dtype_, 12);
  for (int64_t top_k = 1; top_k <= 7; ++top_k) {
    Tensor map = Tensor::empty(ctx_, {rows_, top_k}, DType::kI32);
    for (int64_t i = 0; i < map.numel(); ++i)
      map.data<int32_t>()[i] = static_cast<int32_t>((i * 3 + i / 7) % 8 - 1);
    Guarded out(ctx_, {rows_, hidden_}, dtype_);
    sum_rows(ctx_, map, remote, local, out.tensor);
    Tensor wanted = Tensor::empty(ctx_, {rows_, hidden_}, dtype_);
    for (int64_t i = 0; i < wanted.numel(); ++i) {
      double sum = 0.0;
      for (int64_t k = 0; k < top_k; ++k) {
        const int64_t m = map.data<int32_t>()[i / hidden_ * top_k + k];
        if (m < 0) continue;
        const int64_t column = i % hidden_;
        sum += m < 3 ? testing::element(remote, m * hidden_ + column)
                     : testing::element(local, (m - 3) * hidden_ + column);
        if (dtype_ != DType::kF64) sum = static_cast<float>(sum);
      }
      testing::set_element(wanted, i, sum);
    }
    EXPECT_TRUE(same_bytes(out.tensor, wanted)) << top_k;
    EXPECT_TRUE(out.intact()) << top_k;
  }
}

TEST_P(Rows, PickScalars) {
  const Tensor remote = random_tensor(ctx_, {kRemoteRows}, dtype_, 9);
  const Tensor local = random_tensor(ctx_, {kLocalRows}, dtype_, 10);
  const Tensor map = random_map(-1, kRemoteRows + kLocalRows);
  Guarded out(ctx_, {rows_, kTopK}, dtype_);
  pick_scalars(ctx_, map, remote, local, out.tensor);
  for (int64_t i = 0; i < map.numel(); ++i) {
    const int64_t m = map.data<int32_t>()[i];
    const double wanted = m < 0             ? 0.0
                          : m < kRemoteRows ? testing::element(remote, m)
                                            : testing::element(local, m - kRemoteRows);
    EXPECT_EQ(testing::element(out.tensor, i), wanted) << i;
  }
  EXPECT_TRUE(out.intact());
}

TEST_P(Rows, ZeroRows) {
  if (rows_ == 0) return;
  Guarded x(ctx_, {rows_ + 2, hidden_}, dtype_);
  copy(random_tensor(ctx_, x.tensor.shape(), dtype_, 11), x.tensor);
  const Tensor before = x.tensor.clone(ctx_);
  zero_rows(x.tensor, 1, rows_ + 1);
  EXPECT_TRUE(same_bytes(x.tensor.rows(0, 1), before.rows(0, 1)));
  EXPECT_TRUE(same_bytes(x.tensor.rows(rows_ + 1, rows_ + 2), before.rows(rows_ + 1, rows_ + 2)));
  EXPECT_TRUE(
      same_bytes(x.tensor.rows(1, rows_ + 1), Tensor::zeros(ctx_, {rows_, hidden_}, dtype_)));
  EXPECT_TRUE(x.intact());
}

INSTANTIATE_TEST_SUITE_P(Grid, Rows,
                         ::testing::ValuesIn(matrix_cases({{0, 4}, {1, 1}, {7, 33}, {130, 513}})),
                         matrix_case_name);

TEST(RowsErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor x = Tensor::zeros(ctx, {3, 2}, DType::kF32), out = Tensor::zeros(ctx, {2, 2}, x.dtype());
  const Tensor index = tensor_of<int32_t>(ctx, {2}, {0, 3});
  const Tensor three = tensor_of<int32_t>(ctx, {3}, {0, 1, 2});
  const Tensor map = tensor_of<int32_t>(ctx, {2, 1}, {-1, 6});
  const Tensor low = tensor_of<int32_t>(ctx, {2, 1}, {-2, 0});
  EXPECT_TRUE(throws_with<Error>([&] { gather_rows(ctx, x, index, out); },
                                 {"gather_rows: index", "holds 3", "position 1", "[0, 3)"}));
  EXPECT_TRUE(throws_with<Error>([&] { gather_rows(ctx, x, three, out); },
                                 {"out has shape [2, 2]", "3 or more"}));
  EXPECT_TRUE(throws_with<Error>([&] { sum_rows(ctx, map, x, x, out); },
                                 {"sum_rows: map", "holds 6", "position 1", "[-1, 6)"}));
  EXPECT_TRUE(throws_with<Error>([&] { sum_rows(ctx, low, x, x, out); }, {"holds -2"}));
  EXPECT_TRUE(throws_with<Error>([&] { sum_rows(ctx, map, x, x, x); }, {"out has shape [3, 2]"}));
  EXPECT_TRUE(throws_with<Error>([&] { gather_scalars(ctx, x, map, out); }, {"index", "[2, 1]"}));
  EXPECT_TRUE(throws_with<Error>([&] { zero_rows(x, 1, 4); }, {"rows [1, 4)", "[3, 2]"}));
}

}  // namespace
}  // namespace spillway::kernels
