#include "spillway/kernels/embedding.h"

#include <gtest/gtest.h>

#include "support/gradient_check.h"
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
using testing::throws_with;

constexpr int64_t kVocab = 11;

Tensor random_ids(Context& ctx, int64_t count, int64_t vocab) {
  Tensor ids = Tensor::empty(ctx, {count}, DType::kI32);
  Rng rng(99);
  for (int32_t& id : ids.span<int32_t>()) {
    id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  }
  return ids;
}

class Embedding : public ::testing::TestWithParam<MatrixCase> {
 protected:
  Context ctx_{Device::kCpu, 2};
  DType dtype_ = GetParam().dtype;
  DType acc_ = accumulator_dtype(GetParam().dtype);
  int64_t hidden_ = GetParam().cols;
  Tensor ids_ = random_ids(ctx_, GetParam().rows, kVocab);
};

TEST_P(Embedding, CopiesRowsExactly) {
  const Tensor w = random_tensor(ctx_, {kVocab, hidden_}, dtype_, 1);
  Guarded y(ctx_, {GetParam().rows, hidden_}, dtype_);
  embedding(ctx_, ids_, w, y.tensor);
  for (int64_t r = 0; r < GetParam().rows; ++r) {
    const int64_t id = ids_.data<int32_t>()[r];
    EXPECT_TRUE(same_bytes(y.tensor.rows(r, r + 1), w.rows(id, id + 1))) << r;
  }
  EXPECT_TRUE(y.intact());
}

TEST_P(Embedding, BackwardAddsRows) {
  const Tensor dy = random_tensor(ctx_, {GetParam().rows, hidden_}, dtype_, 2);
  Guarded dw(ctx_, {kVocab, hidden_}, acc_);
  copy(random_tensor(ctx_, {kVocab, hidden_}, acc_, 3), dw.tensor);
  std::vector<double> wanted = testing::to_doubles(dw.tensor);
  for (int64_t r = 0; r < GetParam().rows; ++r) {
    for (int64_t i = 0; i < hidden_; ++i) {
      wanted[static_cast<size_t>(ids_.data<int32_t>()[r] * hidden_ + i)] +=
          testing::element(dy, r * hidden_ + i);
    }
  }
  embedding_backward(ctx_, dy, ids_, dw.tensor);
  // Some dozen terms of size 1 that cancel, summed in the accumulator dtype.
  EXPECT_TRUE(all_near(dw.tensor, wanted, testing::tolerance(acc_), 10.0));
  EXPECT_TRUE(dw.intact());
}

TEST_P(Embedding, ThreadsDoNotChangeTheBits) {
  Context one;
  const Tensor dy = random_tensor(ctx_, {GetParam().rows, hidden_}, dtype_, 4);
  Tensor a = Tensor::zeros(ctx_, {kVocab, hidden_}, acc_), b = a.clone(ctx_);
  embedding_backward(one, dy, ids_, a);
  embedding_backward(ctx_, dy, ids_, b);
  EXPECT_TRUE(same_bytes(a, b));
}

INSTANTIATE_TEST_SUITE_P(Grid, Embedding,
                         ::testing::ValuesIn(matrix_cases({{0, 4}, {1, 1}, {7, 33}, {400, 128}})),
                         matrix_case_name);

TEST(EmbeddingGradient, MatchesCentralDifferences) {
  Context ctx;
  const Tensor ids = testing::tensor_of<int32_t>(ctx, {2, 2}, {1, 0, 1, 2});
  const Tensor w = random_tensor(ctx, {4, 3}, DType::kF64, 5);
  const Tensor dy = random_tensor(ctx, {2, 2, 3}, DType::kF64, 6);
  Tensor dw = Tensor::zeros(ctx, {4, 3}, DType::kF64);
  embedding_backward(ctx, dy, ids, dw);
  EXPECT_TRUE(testing::gradient_matches(
      [&](const Tensor& t) {
        Tensor y = Tensor::empty(ctx, {2, 2, 3}, DType::kF64);
        embedding(ctx, ids, t, y);
        return testing::dot(y, dy);
      },
      w, dw));
}

TEST(EmbeddingErrors, ForeignIdsAreDataErrors) {
  Context ctx;
  const Tensor w = Tensor::zeros(ctx, {4, 2}, DType::kF32);
  Tensor y = Tensor::zeros(ctx, {3, 2}, DType::kF32), dw = w.clone(ctx);
  const Tensor high = testing::tensor_of<int32_t>(ctx, {3}, {0, 3, 4});
  const Tensor low = testing::tensor_of<int32_t>(ctx, {3}, {0, -1, 2});
  EXPECT_TRUE(throws_with<DataError>([&] { embedding(ctx, high, w, y); },
                                     {"token id 4", "position 2", "[0, 4)"}));
  EXPECT_TRUE(
      throws_with<DataError>([&] { embedding(ctx, low, w, y); }, {"token id -1", "position 1"}));
  EXPECT_TRUE(throws_with<DataError>([&] { embedding_backward(ctx, y, high, dw); },
                                     {"embedding_backward", "token id 4", "position 2"}));
}

TEST(EmbeddingErrors, NameTensorsAndValues) {
  Context ctx;
  const Tensor w = Tensor::zeros(ctx, {4, 2}, DType::kF32);
  Tensor y = Tensor::zeros(ctx, {3, 2}, DType::kF32), wide = Tensor::zeros(ctx, {2, 3}, y.dtype());
  Tensor y16 = Tensor::zeros(ctx, {3, 2}, DType::kBF16),
         dw16 = Tensor::zeros(ctx, {4, 2}, y16.dtype());
  const Tensor ids = Tensor::zeros(ctx, {3}, DType::kI32);
  EXPECT_TRUE(throws_with<Error>([&] { embedding(ctx, w, w, y); }, {"tokens is f32", "i32"}));
  EXPECT_TRUE(throws_with<Error>([&] { embedding(ctx, ids, w, wide); }, {"y has shape [2, 3]"}));
  EXPECT_TRUE(throws_with<Error>([&] { embedding(ctx, ids, w, y16); }, {"w is f32", "bf16"}));
  EXPECT_TRUE(
      throws_with<Error>([&] { embedding_backward(ctx, y16, ids, dw16); }, {"dw is bf16", "f32"}));
}

}  // namespace
}  // namespace spillway::kernels
