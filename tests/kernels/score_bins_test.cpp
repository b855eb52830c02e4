#include "spillway/kernels/score_bins.h"

#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::Guarded;
using testing::tensor_of;
using testing::throws_with;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(ScoreKey, DescendsStrictlyWithTheGate) {
  const std::vector<double> descending = {kInfinity, 3e38, 1.0,  0.9921875, 0.5,        1e-30, 0.0,
                                          -1e-30,    -0.5, -1.0, -3e38,     -kInfinity, kNan};
  for (size_t i = 1; i < descending.size(); ++i) {
    EXPECT_LT(score_key(descending[i - 1]), score_key(descending[i])) << descending[i];
    EXPECT_LT(score_key(static_cast<float>(descending[i - 1])),
              score_key(static_cast<float>(descending[i])))
        << descending[i];
  }
}

TEST(ScoreKey, IsMonotoneOverAllBf16) {
  // Neighbours of one sign differ by one step of the key, so no value shares a bin by accident.
  for (uint32_t bits = 1; bits <= 0x7f80U; ++bits) {
    bf16 below, above;
    below.bits = static_cast<uint16_t>(bits - 1);
    above.bits = static_cast<uint16_t>(bits);
    ASSERT_EQ(score_key(below), score_key(above) + 1) << bits;
    below.bits = static_cast<uint16_t>(bits | 0x8000U);
    ASSERT_GT(score_key(below), score_key(bf16(0.0F))) << bits;
    above.bits = static_cast<uint16_t>((bits - 1) | 0x8000U);
    ASSERT_LT(score_key(above), score_key(below)) << bits;
  }
}

TEST(ScoreKey, OneRoundingIsOneKey) {
  EXPECT_EQ(score_key(0.0F), score_key(-0.0F));
  EXPECT_EQ(score_key(0.5F), score_key(0.5001F));  // half a bf16 step at 0.5 is 2^-10
  EXPECT_NE(score_key(0.5F), score_key(0.503F));
  bf16 negative_nan;
  negative_nan.bits = 0xffc1U;
  EXPECT_EQ(score_key(negative_nan), 0xffffU);
  EXPECT_EQ(score_key(std::nanf("")), 0xffffU);
}

struct BinsCase {
  const char* name;
  int64_t tokens;
  int64_t top_k;
  DType dtype;
  double scale;  // of the gates: what spreads them over more or fewer bins
};

class ScoreBins : public ::testing::TestWithParam<BinsCase> {
 protected:
  static constexpr int64_t kExperts = 6;
  void SetUp() override {
    const BinsCase& c = GetParam();
    Rng rng(11);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < c.tokens * c.top_k; ++i) {
      ids.push_back(static_cast<int32_t>(rng.below(kExperts + 1)) - 1);
    }
    ids_ = tensor_of<int32_t>(ctx_, {c.tokens, c.top_k}, ids);
    gate_ = testing::random_tensor(ctx_, {c.tokens, c.top_k}, c.dtype, 4, c.scale);
  }

  // By division and comparison of values, one assignment at a time.
  std::vector<int32_t> wanted(const std::vector<ScoreBinRow>& rows, int64_t num_rows) {
    std::vector<int32_t> bins(static_cast<size_t>(num_rows * kScoreBins), 0);
    for (int64_t i = 0; i < ids_.numel(); ++i) {
      const int32_t id = ids_.data<int32_t>()[i];
      if (id < 0 || rows[static_cast<size_t>(id)].row < 0) continue;
      const ScoreBinRow& row = rows[static_cast<size_t>(id)];
      const int64_t key = score_key(static_cast<float>(testing::element(gate_, i)));
      if (row.boundary >= 0 && key / kScoreBins != row.boundary) continue;
      const int64_t bin = row.boundary >= 0 ? key % kScoreBins : key / kScoreBins;
      ++bins[static_cast<size_t>(row.row * kScoreBins + bin)];
    }
    return bins;
  }

  void expect_bins(const std::vector<ScoreBinRow>& rows, int64_t num_rows) {
    Guarded bins(ctx_, {num_rows, kScoreBins}, DType::kI32);
    score_bins(ctx_, {.topk_idx = ids_, .gate = gate_, .rows = rows, .bins = bins.tensor});
    const auto got = bins.tensor.span<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(got.begin(), got.end()), wanted(rows, num_rows));
    EXPECT_TRUE(bins.intact());
  }

  Context ctx_{Device::kCpu, 2};
  Tensor ids_, gate_;
};

TEST_P(ScoreBins, CoarseOfSomeExperts) { expect_bins({{2, -1}, {}, {0, -1}, {}, {1, -1}, {}}, 3); }

TEST_P(ScoreBins, FineOfOneBinEach) {
  const int32_t one = score_key(1.0F) / kScoreBins, half = score_key(0.25F) / kScoreBins;
  expect_bins({{}, {0, one}, {1, half}, {2, one}, {}, {3, 255}}, 4);
}

TEST_P(ScoreBins, NothingIsCountedWithoutRows) { expect_bins(std::vector<ScoreBinRow>(6), 0); }

INSTANTIATE_TEST_SUITE_P(Grid, ScoreBins,
                         ::testing::Values(BinsCase{"empty", 0, 2, DType::kF32, 1.0},
                                           BinsCase{"one", 1, 1, DType::kF32, 1.0},
                                           BinsCase{"f32", 257, 3, DType::kF32, 1.0},
                                           BinsCase{"f64", 257, 3, DType::kF64, 1.0},
                                           BinsCase{"close_f32", 100, 4, DType::kF32, 1e-3}),
                         [](const auto& c) { return c.param.name; });

TEST(ScoreBinsErrors, NameWhatIsWrong) {
  Context ctx;
  const Tensor ids = tensor_of<int32_t>(ctx, {1, 2}, {0, 2});
  const Tensor gate = tensor_of<float>(ctx, {1, 2}, {1.0F, 2.0F});
  Tensor bins = Tensor::empty(ctx, {1, kScoreBins}, DType::kI32);
  const auto run = [&](const std::vector<ScoreBinRow>& rows) {
    score_bins(ctx, {.topk_idx = ids, .gate = gate, .rows = rows, .bins = bins});
  };
  EXPECT_TRUE(throws_with<Error>([&] { run({{0, -1}, {}}); }, {"expert id 2", "position 1"}));
  EXPECT_TRUE(throws_with<Error>([&] { run({{1, -1}, {}, {}}); }, {"row of expert 0 is 1"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        run({{0, 256}, {}, {}});
      },
      {"boundary of expert 0 is 256"}));
}

}  // namespace
}  // namespace spillway::kernels
