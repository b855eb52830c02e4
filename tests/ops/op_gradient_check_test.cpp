// The gradient check itself: it must refuse backward functions that are wrong.
#include "support/op_gradient_check.h"

#include <gtest/gtest.h>

#include "spillway/kernels/elementwise.h"
#include "spillway/kernels/matmul.h"

namespace spillway::testing {
namespace {

using autograd::Backward;
using autograd::Tape;
using autograd::Variable;

enum class Fault {
  kNone,
  kScaled,
  kMissing,
  kZero,
  kTransposed,
  kNegated,
  kSwapped,
  kOnlyTogether
};

/// y = x w of square x and w, with a fault in backward.
Variable faulty_product(Tape& tape, const Variable& x, const Variable& w, Fault fault) {
  Tensor y = Tensor::empty(tape.ctx(), x.shape(), DType::kF64);
  kernels::matmul(tape.ctx(), {.a = x.value(), .b = w.value(), .c = y});
  return tape.record("faulty", std::move(y), {x, w},
                     [x = x.value(), w = w.value(), fault](Backward& b) {
                       Tensor dx = Tensor::empty(b.ctx(), x.shape(), DType::kF64);
                       Tensor dw = Tensor::empty(b.ctx(), w.shape(), DType::kF64);
                       const bool right = fault != Fault::kTransposed;
                       kernels::matmul(b.ctx(), {.a = b.grad(), .b = w, .c = dx, .trans_b = right});
                       kernels::matmul(b.ctx(), {.a = x, .b = b.grad(), .c = dw, .trans_a = true});
                       if (fault == Fault::kScaled)
                         kernels::scale_in_place(b.ctx(), 1.0 + 1e-6, dw);
                       if (fault == Fault::kNegated) kernels::scale_in_place(b.ctx(), -1.0, dx);
                       if (fault == Fault::kZero) dw.zero();
                       if (fault == Fault::kSwapped) std::swap(dx, dw);
                       if (fault == Fault::kOnlyTogether && !b.wants(1)) dx.zero();
                       if (fault != Fault::kMissing) b.give(0, dx);
                       b.give(1, dw);
                     });
}

struct FaultCase {
  const char* label;
  Fault fault;
  const char* text;  ///< of the failure; null: it passes
};

class FaultyOp : public ::testing::TestWithParam<FaultCase> {};

TEST_P(FaultyOp, IsFoundOut) {
  Context ctx;
  const std::vector<OpInput> inputs = {{"x", random_tensor(ctx, {3, 3}, DType::kF64, 1)},
                                       {"w", random_tensor(ctx, {3, 3}, DType::kF64, 2)}};
  const auto result = op_gradients_match(
      ctx,
      [](Tape& tape, const std::vector<Variable>& in) {
        return std::vector{faulty_product(tape, in[0], in[1], GetParam().fault)};
      },
      inputs);
  EXPECT_EQ(static_cast<bool>(result), GetParam().text == nullptr) << result.message();
  if (GetParam().text != nullptr) {
    EXPECT_NE(std::string(result.message()).find(GetParam().text), std::string::npos)
        << result.message();
  }
}

INSTANTIATE_TEST_SUITE_P(
    , FaultyOp,
    ::testing::Values(FaultCase{"none", Fault::kNone, nullptr},
                      FaultCase{"scaled_by_a_millionth", Fault::kScaled, "w [3, 3]: relative"},
                      FaultCase{"missing", Fault::kMissing, "x [3, 3]: relative"},
                      FaultCase{"zero", Fault::kZero, "w [3, 3]: relative"},
                      FaultCase{"transposed", Fault::kTransposed, "x [3, 3]: relative"},
                      FaultCase{"negated", Fault::kNegated, "x [3, 3]: relative"},
                      FaultCase{"swapped", Fault::kSwapped, "x [3, 3]: relative"},
                      FaultCase{"right_only_together", Fault::kOnlyTogether, "constants"}),
    [](const auto& param) { return param.param.label; });

class GradientCheckOfOps : public ::testing::Test {
 protected:
  /// The constant function of x.
  static std::vector<Variable> constant(Tape& tape, const std::vector<Variable>& in) {
    return {tape.record("constant", Tensor::zeros(tape.ctx(), in[0].shape(), DType::kF64), {in[0]},
                        [](Backward&) {})};
  }
  static std::vector<Variable> identity(Tape& tape, const std::vector<Variable>& in) {
    return {tape.record("identity", in[0].value().clone(tape.ctx()), {in[0]},
                        [](Backward& b) { b.give(0, b.take_grad()); })};
  }
  Context ctx_;
  Tensor x_ = random_tensor(ctx_, {3, 2}, DType::kF64, 1);
};

TEST_F(GradientCheckOfOps, RefusesAZeroGradientThatNobodyAnnounced) {
  EXPECT_FALSE(op_gradients_match(ctx_, constant, {{"x", x_}}));
  EXPECT_TRUE(op_gradients_match(ctx_, constant, {{.name = "x", .value = x_, .zero = true}}));
}

TEST_F(GradientCheckOfOps, RefusesAGradientWhereZeroWasAnnounced) {
  EXPECT_FALSE(op_gradients_match(ctx_, identity, {{.name = "x", .value = x_, .zero = true}}));
}

TEST_F(GradientCheckOfOps, LeavesTheInputAsItWas) {
  const Tensor before = x_.clone(ctx_);
  EXPECT_TRUE(op_gradients_match(ctx_, identity, {{"x", x_}}));
  EXPECT_TRUE(same_bytes(before, x_));
}

TEST_F(GradientCheckOfOps, DoesNotReadUnspecifiedRows) {
  x_.data<double>()[2] = std::nan("");
  const std::vector<bool> rows = {true, false, true};
  EXPECT_TRUE(op_gradients_match(ctx_, identity, {{"x", x_, rows}}, {rows}));
  EXPECT_FALSE(op_gradients_match(ctx_, identity, {{"x", x_}})) << "NaN must not pass";
}

}  // namespace
}  // namespace spillway::testing
