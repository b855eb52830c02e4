#include "spillway/kernels/cross_entropy.h"

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
using testing::tolerance;

constexpr double kScale = 0.125;

/// Every fifth row ignored, the ends of the vocabulary among the others.
Tensor some_targets(Context& ctx, int64_t rows, int64_t vocab) {
  Tensor targets = Tensor::empty(ctx, {rows}, DType::kI32);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t id = r % 5 == 4 ? -1 : r % 5 == 1 ? vocab - 1 : r % 5 == 2 ? 0 : r * 7 % vocab;
    targets.data<int32_t>()[r] = static_cast<int32_t>(id);
  }
  return targets;
}

double reference_lse(const Tensor& logits, int64_t row) {
  const int64_t vocab = logits.dim(-1);
  double largest = -1e300, sum = 0.0;
  for (int64_t v = 0; v < vocab; ++v) {
    largest = std::max(largest, testing::element(logits, row * vocab + v));
  }
  for (int64_t v = 0; v < vocab; ++v) {
    sum += std::exp(testing::element(logits, row * vocab + v) - largest);
  }
  return largest + std::log(sum);
}

class CrossEntropy : public ::testing::TestWithParam<MatrixCase> {
 protected:
  Context ctx_{Device::kCpu, 2};
  int64_t rows_ = GetParam().rows, vocab_ = GetParam().cols;
  DType dtype_ = GetParam().dtype;
  DType acc_ = accumulator_dtype(GetParam().dtype);
  Tensor logits_ = random_tensor(ctx_, {rows_, vocab_}, dtype_, 1, 4.0);
  Tensor targets_ = some_targets(ctx_, rows_, vocab_);
};

TEST_P(CrossEntropy, Forward) {
  Guarded loss(ctx_, {rows_}, acc_), lse(ctx_, {rows_}, acc_);
  cross_entropy(ctx_, logits_, targets_, loss.tensor, lse.tensor);
  std::vector<double> wanted_loss, wanted_lse;
  for (int64_t r = 0; r < rows_; ++r) {
    const int32_t target = targets_.data<int32_t>()[r];
    wanted_lse.push_back(reference_lse(logits_, r));
    wanted_loss.push_back(
        target < 0 ? 0.0 : wanted_lse.back() - testing::element(logits_, r * vocab_ + target));
  }
  EXPECT_TRUE(all_near(loss.tensor, wanted_loss, tolerance(acc_)));
  EXPECT_TRUE(all_near(lse.tensor, wanted_lse, tolerance(acc_)));
  EXPECT_TRUE(loss.intact() && lse.intact());
}

TEST_P(CrossEntropy, BackwardAlsoInPlace) {
  Tensor loss = Tensor::empty(ctx_, {rows_}, acc_), lse = loss.clone(ctx_);
  cross_entropy(ctx_, logits_, targets_, loss, lse);
  Guarded dlogits(ctx_, logits_.shape(), dtype_);
  cross_entropy_backward(ctx_, {.logits = logits_,
                                .targets = targets_,
                                .lse = lse,
                                .scale = kScale,
                                .dlogits = dlogits.tensor});
  std::vector<double> wanted;
  for (int64_t r = 0; r < rows_; ++r) {
    const int32_t target = targets_.data<int32_t>()[r];
    const double row_lse = reference_lse(logits_, r);
    for (int64_t v = 0; v < vocab_; ++v) {
      const double p = std::exp(testing::element(logits_, r * vocab_ + v) - row_lse);
      wanted.push_back(target < 0 ? 0.0 : kScale * (p - (v == target ? 1.0 : 0.0)));
    }
  }
  // lse of size 10 is rounded to its dtype: an error of a few 1e-7 in the exponent.
  EXPECT_TRUE(all_near(dlogits.tensor, wanted, 2 * tolerance(dtype_)));
  EXPECT_TRUE(dlogits.intact());

  Tensor in_place = logits_.clone(ctx_);
  cross_entropy_backward(
      ctx_,
      {.logits = in_place, .targets = targets_, .lse = lse, .scale = kScale, .dlogits = in_place});
  EXPECT_TRUE(same_bytes(in_place, dlogits.tensor));
}

TEST_P(CrossEntropy, ThreadsDoNotChangeTheBits) {
  Context one;
  std::vector<Tensor> results;
  for (Context* ctx : {&one, &ctx_}) {
    Tensor loss = Tensor::empty(*ctx, {rows_}, acc_), lse = loss.clone(*ctx);
    Tensor dlogits = Tensor::empty(*ctx, logits_.shape(), dtype_);
    cross_entropy(*ctx, logits_, targets_, loss, lse);
    cross_entropy_backward(
        *ctx,
        {.logits = logits_, .targets = targets_, .lse = lse, .scale = 1.0, .dlogits = dlogits});
    results.insert(results.end(), {loss, lse, dlogits});
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(results[i], results[i + 3])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Grid, CrossEntropy,
    ::testing::ValuesIn(matrix_cases({{0, 4}, {1, 1}, {6, 17}, {16, 256}, {7, 5003}})),
    matrix_case_name);

TEST(CrossEntropyForward, LargeVocabularyAndLargeLogits) {
  Context ctx;
  constexpr int64_t kVocab = 152064;
  Tensor logits = random_tensor(ctx, {2, kVocab}, DType::kF32, 2);
  for (float& value : logits.rows(1, 2).span<float>()) value += 30000.0f;
  const Tensor targets = testing::tensor_of<int32_t>(ctx, {2}, {kVocab - 1, 0});
  Tensor loss = Tensor::empty(ctx, {2}, DType::kF32), lse = loss.clone(ctx);
  cross_entropy(ctx, logits, targets, loss, lse);
  for (int64_t r = 0; r < 2; ++r) {
    const double wanted = reference_lse(logits, r);
    EXPECT_NEAR(testing::element(lse, r), wanted, 2e-7 * wanted) << r;
    const double target = testing::element(logits, r == 0 ? kVocab - 1 : kVocab);
    // The loss is formed before lse is rounded: as good at an offset of 30000 as without.
    EXPECT_NEAR(testing::element(loss, r), wanted - target, 3e-6) << r;
  }
}

TEST(CrossEntropyGradient, MatchesCentralDifferences) {
  Context ctx;
  const Tensor logits = random_tensor(ctx, {4, 5}, DType::kF64, 3);
  const Tensor targets = testing::tensor_of<int32_t>(ctx, {4}, {2, -1, 0, 4});
  Tensor loss = Tensor::empty(ctx, {4}, DType::kF64), lse = loss.clone(ctx);
  cross_entropy(ctx, logits, targets, loss, lse);
  Tensor dlogits = Tensor::empty(ctx, {4, 5}, DType::kF64);
  cross_entropy_backward(
      ctx, {.logits = logits, .targets = targets, .lse = lse, .scale = kScale, .dlogits = dlogits});
  EXPECT_TRUE(testing::gradient_matches(
      [&](const Tensor& t) {
        Tensor l = Tensor::empty(ctx, {4}, DType::kF64), s = l.clone(ctx);
        cross_entropy(ctx, t, targets, l, s);
        double sum = 0.0;
        for (const double value : l.span<double>()) sum += value;
        return kScale * sum;
      },
      logits, dlogits));
}

TEST(CrossEntropyErrors, ForeignTargetsAreDataErrors) {
  Context ctx;
  Tensor logits = Tensor::zeros(ctx, {3, 4}, DType::kF32);
  Tensor loss = Tensor::zeros(ctx, {3}, DType::kF32), lse = loss.clone(ctx);
  const Tensor high = testing::tensor_of<int32_t>(ctx, {3}, {0, 4, 1});
  const Tensor low = testing::tensor_of<int32_t>(ctx, {3}, {0, 1, -2});
  EXPECT_TRUE(throws_with<DataError>([&] { cross_entropy(ctx, logits, high, loss, lse); },
                                     {"target 4", "position 1", "[0, 4)"}));
  EXPECT_TRUE(throws_with<DataError>([&] { cross_entropy(ctx, logits, low, loss, lse); },
                                     {"target -2", "position 2"}));
  EXPECT_TRUE(throws_with<DataError>(
      [&] {
        cross_entropy_backward(
            ctx, {.logits = logits, .targets = high, .lse = lse, .scale = 1.0, .dlogits = logits});
      },
      {"cross_entropy_backward", "target 4"}));
}

TEST(CrossEntropyErrors, NameTensorsAndValues) {
  Context ctx;
  Tensor logits = Tensor::zeros(ctx, {3, 4}, DType::kF32);
  Tensor loss = Tensor::zeros(ctx, {3}, DType::kF32), lse2 = Tensor::zeros(ctx, {2}, DType::kF32);
  Tensor targets = Tensor::zeros(ctx, {3}, DType::kI32);
  EXPECT_TRUE(throws_with<Error>([&] { cross_entropy(ctx, logits, targets, loss, lse2); },
                                 {"lse has shape [2]", "3 elements"}));
  EXPECT_TRUE(throws_with<Error>([&] { cross_entropy(ctx, logits, loss, loss, loss); },
                                 {"targets is f32", "i32"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        cross_entropy(ctx, Tensor::zeros(ctx, {3, 0}, DType::kF32), targets, loss, loss);
      },
      {"[3, 0]", "vocabulary"}));
}

}  // namespace
}  // namespace spillway::kernels
