#include "spillway/kernels/kept_gates.h"

#include "support/gradient_check.h"
#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::Guarded;
using testing::tensor_of;
using testing::throws_with;

struct GatesCase {
  const char* name;
  int64_t tokens;
  int64_t top_k;
  DType dtype;
};

class KeptGates : public ::testing::TestWithParam<GatesCase> {
 protected:
  // A fifth of the entries is none, a third of the rest is dropped; token 0 loses all.
  void SetUp() override {
    const GatesCase& c = GetParam();
    Rng rng(3);
    std::vector<int32_t> ids;
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < c.tokens * c.top_k; ++i) {
      const bool none = rng.below(5) == 0;
      ids.push_back(none ? -1 : static_cast<int32_t>(i % 7));
      rows.push_back(none || i < c.top_k || rng.below(3) == 0 ? -1 : static_cast<int32_t>(i));
    }
    ids_ = tensor_of<int32_t>(ctx_, shape(), ids);
    row_of_ = tensor_of<int32_t>(ctx_, shape(), rows);
    gate_ = Tensor::empty(ctx_, shape(), c.dtype);
    for (int64_t i = 0; i < gate_.numel(); ++i) testing::set_element(gate_, i, 0.1 + rng.uniform());
  }
  Shape shape() const { return {GetParam().tokens, GetParam().top_k}; }
  bool kept(int64_t i) const { return row_of_.data<int32_t>()[i] >= 0; }
  bool assigned(int64_t i) const { return ids_.data<int32_t>()[i] >= 0; }

  // With S_all of `constant` and all else of `gate`.
  std::vector<double> wanted(const Tensor& gate, const Tensor& constant) const {
    std::vector<double> out = testing::to_doubles(gate);
    const int64_t top_k = GetParam().top_k;
    for (int64_t t = 0; t < GetParam().tokens; ++t) {
      double all = 0.0, of_kept = 0.0;
      for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
        if (assigned(i)) all += testing::element(constant, i);
        if (kept(i)) of_kept += testing::element(gate, i);
      }
      for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
        if (kept(i) && of_kept != 0.0) out[static_cast<size_t>(i)] *= all / of_kept;
      }
    }
    return out;
  }

  Context ctx_{Device::kCpu, 2};
  Tensor ids_, row_of_, gate_;
};

TEST_P(KeptGates, KeptOnesHaveTheSumOfAll) {
  Guarded out(ctx_, shape(), GetParam().dtype);
  renormalize_kept(ctx_, {gate_, row_of_, ids_, out.tensor});
  EXPECT_TRUE(
      testing::all_near(out.tensor, wanted(gate_, gate_), testing::tolerance(GetParam().dtype)));
  EXPECT_TRUE(out.intact());
}

TEST_P(KeptGates, WithoutLossTheBitsStay) {
  // Without ids everything that is not kept is none: nothing was lost.
  Guarded out(ctx_, shape(), GetParam().dtype);
  renormalize_kept(ctx_, {gate_, row_of_, Tensor(), out.tensor});
  EXPECT_TRUE(testing::same_bytes(out.tensor, gate_));
}

TEST_P(KeptGates, BackwardIsExactlyZeroForWhatIsNotKept) {
  const Tensor d_out = testing::random_tensor(ctx_, shape(), GetParam().dtype, 8);
  Guarded d_gate(ctx_, shape(), GetParam().dtype);
  renormalize_kept_backward(ctx_, {d_out, gate_, row_of_, ids_, d_gate.tensor});
  for (int64_t i = 0; i < gate_.numel(); ++i) {
    if (!kept(i)) {
      EXPECT_EQ(testing::element(d_gate.tensor, i), 0.0) << i;
    }
  }
  EXPECT_TRUE(d_gate.intact());
  Tensor in_place = d_out.clone(ctx_);
  renormalize_kept_backward(ctx_, {in_place, gate_, row_of_, ids_, in_place});
  EXPECT_TRUE(testing::same_bytes(in_place, d_gate.tensor));
}

class KeptGatesGradient : public KeptGates {};

TEST_P(KeptGatesGradient, WithTheSumOfAllConstant) {
  const Tensor d_out = testing::random_tensor(ctx_, shape(), DType::kF64, 9);
  const Tensor constant = gate_.clone(ctx_);
  Tensor d_gate = Tensor::empty(ctx_, shape(), DType::kF64);
  renormalize_kept_backward(ctx_, {d_out, gate_, row_of_, ids_, d_gate});
  // Dropped gates reach nobody: only what is kept is summed.
  const auto loss = [&](const Tensor& gate) {
    const std::vector<double> out = wanted(gate, constant);
    double sum = 0.0;
    for (int64_t i = 0; i < gate.numel(); ++i) {
      if (kept(i)) sum += out[static_cast<size_t>(i)] * testing::element(d_out, i);
    }
    return sum;
  };
  EXPECT_TRUE(testing::gradient_matches(loss, gate_, d_gate));
}

INSTANTIATE_TEST_SUITE_P(Grid, KeptGates,
                         ::testing::Values(GatesCase{"empty_f32", 0, 2, DType::kF32},
                                           GatesCase{"all_lost_f32", 1, 2, DType::kF32},
                                           GatesCase{"one_expert_f32", 40, 1, DType::kF32},
                                           GatesCase{"f32", 100, 8, DType::kF32},
                                           GatesCase{"f64", 40, 4, DType::kF64}),
                         [](const auto& c) { return c.param.name; });

INSTANTIATE_TEST_SUITE_P(Doubles, KeptGatesGradient,
                         ::testing::Values(GatesCase{"few", 9, 3, DType::kF64},
                                           GatesCase{"wide", 40, 8, DType::kF64}),
                         [](const auto& c) { return c.param.name; });

TEST(KeptGatesByHand, ScalesTokensThatLostAndLeavesThoseThatCannot) {
  Context ctx;
  // Token 0 lost 1 of 4; token 1 lost all; token 2 kept gates that cancel; token 3 has a hole.
  const Tensor gate = tensor_of<float>(ctx, {4, 2}, {3, 1, 2, 5, 0, 7, 6, 9});
  const Tensor row_of = tensor_of<int32_t>(ctx, {4, 2}, {0, -1, -1, -1, 1, -1, 2, -1});
  const Tensor ids = tensor_of<int32_t>(ctx, {4, 2}, {0, 1, 0, 1, 0, 1, 0, -1});
  Tensor out = Tensor::empty(ctx, {4, 2}, DType::kF32);
  renormalize_kept(ctx, {gate, row_of, ids, out});
  EXPECT_EQ(testing::to_doubles(out), (std::vector<double>{4, 1, 2, 5, 0, 7, 6, 9}));
  const Tensor d_out = tensor_of<float>(ctx, {4, 2}, {1, 1, 1, 1, 2, 1, 5, 1});
  Tensor d_gate = Tensor::empty(ctx, {4, 2}, DType::kF32);
  renormalize_kept_backward(ctx, {d_out, gate, row_of, ids, d_gate});
  // A single kept gate has the constant sum whatever it is: no gradient.
  EXPECT_EQ(testing::to_doubles(d_gate), (std::vector<double>{0, 0, 0, 0, 2, 0, 0, 0}));
}

TEST(KeptGatesByHand, LeavesWhatIsTooSmallToBeDividedBy) {
  Context ctx;
  // S_all / S_kept is 1e40: no f32.
  constexpr float kTiny = 1e-40F;
  const Tensor gate = tensor_of<float>(ctx, {1, 2}, {1, kTiny});
  const Tensor row_of = tensor_of<int32_t>(ctx, {1, 2}, {-1, 0});
  const Tensor ids = tensor_of<int32_t>(ctx, {1, 2}, {0, 1});
  Tensor out = Tensor::empty(ctx, {1, 2}, DType::kF32);
  renormalize_kept(ctx, {gate, row_of, ids, out});
  EXPECT_EQ(testing::to_doubles(out), (std::vector<double>{1, kTiny}));
  const Tensor d_out = tensor_of<float>(ctx, {1, 2}, {3, 5});
  renormalize_kept_backward(ctx, {d_out, gate, row_of, ids, out});
  EXPECT_EQ(testing::to_doubles(out), (std::vector<double>{0, 5}));
}

TEST(KeptGatesErrors, NameTheTensor) {
  Context ctx;
  const Tensor gate = Tensor::zeros(ctx, {2, 2}, DType::kF32);
  const Tensor rows = Tensor::zeros(ctx, {2, 2}, DType::kI32);
  Tensor out = Tensor::zeros(ctx, {2, 2}, DType::kF64);
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        renormalize_kept(ctx, {gate, rows, Tensor(), out});
      },
      {"renormalize_kept: out is f64", "f32"}));
  const Tensor fewer = Tensor::zeros(ctx, {1, 2}, DType::kI32);
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        renormalize_kept(ctx, {gate, fewer, Tensor(), out});
      },
      {"row_of has shape [1, 2]", "[2, 2]"}));
}

}  // namespace
}  // namespace spillway::kernels
