// Gradients through the linear tape: accumulation, sharing, constants, absent gradients, errors.
#include "spillway/autograd/tape.h"

#include <gtest/gtest.h>

#include "small_ops.h"

namespace spillway::autograd::testing {
namespace {

using Doubles = std::vector<double>;

class TapeTest : public ::testing::Test {
 protected:
  Context ctx_;
  Variable w_ = leaf(ctx_, "w", filled(ctx_, {2}, 3.0));
  Variable v_ = leaf(ctx_, "v", filled(ctx_, {2}, 5.0));
};

TEST_F(TapeTest, AProductGivesEachFactorTheOther) {
  Tape tape(ctx_);
  tape.backward(sum(tape, multiply(tape, w_, v_)));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{5.0, 5.0}));
  EXPECT_EQ(to_doubles(v_.grad()), (Doubles{3.0, 3.0}));
}

TEST_F(TapeTest, GradientsOfSeveralUsesAddUp) {
  Tape tape(ctx_);
  const Variable a = scale(tape, w_, 1.0);
  const Variable total = plus(tape, plus(tape, scale(tape, a, 2.0), scale(tape, a, 7.0)), a);
  tape.backward(sum(tape, total));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{10.0, 10.0}));
}

TEST_F(TapeTest, AVariableThatIsBothInputsOfAnOpGetsBothGradients) {
  Tape tape(ctx_);
  tape.backward(sum(tape, multiply(tape, w_, w_)));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{6.0, 6.0}));
}

TEST_F(TapeTest, SeveralBackwardsAddToTheBufferOfALeaf) {
  const Tensor buffer = w_.grad();
  for (int pass = 1; pass <= 3; ++pass) {
    Tape tape(ctx_);
    tape.backward(sum(tape, scale(tape, w_, 2.0)));
    EXPECT_EQ(to_doubles(buffer), Doubles(2, 2.0 * pass));
  }
  EXPECT_TRUE(buffer.shares_storage(w_.grad()));
}

TEST_F(TapeTest, OneTapeServesSeveralBackwards) {
  Tape tape(ctx_);
  tape.backward(sum(tape, scale(tape, w_, 2.0)));
  EXPECT_EQ(tape.num_entries(), 0U);
  tape.backward(sum(tape, scale(tape, w_, 0.5)));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{2.5, 2.5}));
}

TEST_F(TapeTest, ATensorGivenToTwoInputsIsNotWrittenThroughOne) {
  Tape tape(ctx_);
  const Variable a = scale(tape, w_, 1.0);
  const Variable b = scale(tape, v_, 1.0);
  const Variable more = scale(tape, a, 3.0);
  // Backward gives one tensor to `more` and the inner sum, and on to a and b; then a gets more.
  tape.backward(sum(tape, plus(tape, plus(tape, a, b), more)));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{4.0, 4.0}));
  EXPECT_EQ(to_doubles(v_.grad()), (Doubles{1.0, 1.0}));
}

TEST_F(TapeTest, TheSeedOfTheCallerIsNotWritten) {
  Tape tape(ctx_);
  const Variable a = scale(tape, w_, 1.0);
  const Tensor seed = filled(ctx_, {2}, 2.0);
  // The gradient of a starts as the seed's memory, then grows.
  tape.backward(plus(tape, a, a), seed);
  EXPECT_EQ(to_doubles(seed), (Doubles{2.0, 2.0}));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{4.0, 4.0}));
}

TEST_F(TapeTest, TwoBF16GradientsAddIntoMemoryOfTheirOwn) {
  Tape tape(ctx_);
  Variable x = Variable::leaf("x", random_tensor(ctx_, {4}, DType::kBF16, 1),
                              Tensor::zeros(ctx_, {4}, DType::kF32));
  const Tensor dy = random_tensor(ctx_, {4}, DType::kBF16, 2);
  const Tensor before = dy.clone(ctx_);
  Doubles twice = to_doubles(dy);  // exact in bf16
  for (double& value : twice) value *= 2.0;
  const Variable inner = tape.record("inner", x.value().clone(ctx_), {x}, [&](Backward& b) {
    EXPECT_EQ(b.grad().dtype(), DType::kBF16);
    EXPECT_EQ(to_doubles(b.grad()), twice);
    b.give(0, b.take_grad());
  });
  const Tensor one = Tensor::zeros(ctx_, {1}, DType::kF32);
  tape.backward(tape.record("root", one, {inner, inner}, [dy](Backward& b) {
    b.give(0, dy);
    b.give(1, dy);
  }));
  EXPECT_TRUE(same_bytes(before, dy));
  EXPECT_EQ(to_doubles(x.grad()), twice);
}

TEST_F(TapeTest, AGradientThatNobodySharesMayBeOverwritten) {
  Tape tape(ctx_);
  bool unique = false;
  const Variable x = tape.record("probe", w_.value().clone(ctx_), {w_}, [&](Backward& b) {
    const Tensor dy = b.take_grad();
    unique = dy.unique();
  });
  tape.backward(sum(tape, x));
  EXPECT_TRUE(unique);
}

TEST_F(TapeTest, ConstantsAreNotRecorded) {
  Tape tape(ctx_);
  const Variable constant{filled(ctx_, {2}, 4.0)};
  const Variable product = multiply(tape, constant, constant);
  EXPECT_FALSE(product.requires_grad());
  EXPECT_EQ(tape.num_entries(), 0U);
  tape.backward(sum(tape, product));  // nothing to do, no error
}

TEST_F(TapeTest, AConstantInputWantsNothing) {
  Tape tape(ctx_);
  const Variable constant{filled(ctx_, {2}, 4.0)};
  std::vector<bool> wanted;
  const Variable y = tape.record("probe", w_.value().clone(ctx_), {constant, w_}, [&](Backward& b) {
    wanted = {b.wants(0), b.wants(1)};
    b.give(0, b.grad());  // goes nowhere
    b.give(1, b.grad());
  });
  tape.backward(sum(tape, multiply(tape, y, constant)));
  EXPECT_EQ(wanted, (std::vector<bool>{false, true}));
  EXPECT_FALSE(constant.grad().defined());
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{4.0, 4.0}));
}

TEST_F(TapeTest, AnUnusedOutputHasNoGradient) {
  Tape tape(ctx_);
  std::vector<bool> defined;
  const auto outputs = tape.record("two", {w_.value().clone(ctx_), w_.value().clone(ctx_)},
                                   std::vector<Variable>{w_}, [&](Backward& b) {
                                     defined = {b.grad(0).defined(), b.grad(1).defined()};
                                   });
  tape.backward(sum(tape, outputs[1]));
  EXPECT_EQ(defined, (std::vector<bool>{false, true}));
}

TEST_F(TapeTest, AnOpThatTheRootDoesNotNeedIsNotRunBack) {
  Tape tape(ctx_);
  bool ran = false;
  tape.record("beside", w_.value().clone(ctx_), {w_}, [&](Backward&) { ran = true; });
  tape.backward(sum(tape, scale(tape, v_, 2.0)));
  EXPECT_FALSE(ran);
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{0.0, 0.0}));
}

TEST_F(TapeTest, AnUndefinedGradientGivenIsNoGradient) {
  Tape tape(ctx_);
  bool reached = false;
  const Variable below =
      tape.record("below", w_.value().clone(ctx_), {w_}, [&](Backward&) { reached = true; });
  const Variable above = tape.record("above", w_.value().clone(ctx_), {below},
                                     [](Backward& b) { b.give(0, Tensor()); });
  tape.backward(sum(tape, above));
  EXPECT_FALSE(reached);
}

TEST_F(TapeTest, AnEmptyGradientIsAGradient) {
  // A rank without tokens walks its entries (and their collectives) like the others.
  Tape tape(ctx_);
  bool reached = false;
  const Variable none = leaf(ctx_, "none", filled(ctx_, {0}, 0.0));
  const Variable y = tape.record("probe", none.value().clone(ctx_), {none}, [&](Backward& b) {
    reached = true;
    b.give(0, b.take_grad());
  });
  tape.backward(sum(tape, y));
  EXPECT_TRUE(reached);
}

TEST_F(TapeTest, WithoutRecordingNothingIsKept) {
  Tape tape(ctx_, false);
  const int64_t before = bytes_in_use(ctx_);
  {
    const Variable y = sum(tape, multiply(tape, w_, v_));
    EXPECT_EQ(y.value().data<double>()[0], 30.0);
    EXPECT_FALSE(y.requires_grad());
    EXPECT_EQ(tape.num_entries(), 0U);
    EXPECT_TRUE(throws_with<Error>([&] { tape.backward(y); }, {"does not record"}));
  }
  EXPECT_EQ(bytes_in_use(ctx_), before);
}

TEST_F(TapeTest, BackwardFromManyElementsNeedsASeed) {
  Tape tape(ctx_);
  const Variable y = scale(tape, w_, 2.0);
  EXPECT_TRUE(throws_with<Error>([&] { tape.backward(y); }, {"[2]", "seed"}));
  EXPECT_EQ(tape.num_entries(), 0U);
}

TEST_F(TapeTest, AGradientOfAnotherShapeIsAnError) {
  Tape tape(ctx_);
  const Variable y = scale(tape, w_, 2.0);
  EXPECT_TRUE(
      throws_with<Error>([&] { tape.backward(y, filled(ctx_, {3}, 1.0)); }, {"[3]", "[2]"}));
}

TEST_F(TapeTest, KernelsAddIntoTheAccumulatorOfALeaf) {
  Tape tape(ctx_);
  const Variable y = tape.record("op", w_.value().clone(ctx_), {w_}, [](Backward& b) {
    b.accumulator(0).data<double>()[1] += b.grad().data<double>()[1];
  });
  tape.backward(sum(tape, y));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{0.0, 1.0}));
}

TEST_F(TapeTest, TheAccumulatorOfAnotherVariableStartsAtZero) {
  Tape tape(ctx_);
  const Variable x = scale(tape, w_, 2.0);
  const Variable y = tape.record("op", w_.value().clone(ctx_), {x}, [](Backward& b) {
    b.accumulator(0).data<double>()[1] += b.grad().data<double>()[1];
  });
  tape.backward(sum(tape, y));
  EXPECT_EQ(to_doubles(w_.grad()), (Doubles{0.0, 2.0}));
}

TEST_F(TapeTest, KernelsDoNotAddIntoASharedGradient) {
  Tape tape(ctx_);
  const Variable a = scale(tape, w_, 1.0);
  const Variable into =
      tape.record("op", w_.value().clone(ctx_), {a}, [](Backward& b) { b.accumulator(0).zero(); });
  const Variable b = scale(tape, v_, 1.0);
  const Variable shared = plus(tape, a, b);
  EXPECT_TRUE(throws_with<Error>([&] { tape.backward(sum(tape, plus(tape, shared, into))); },
                                 {"nobody shares"}));
}

TEST_F(TapeTest, ALeafNeedsABufferOfItsShapeAndAccumulatorDtype) {
  const Tensor value = random_tensor(ctx_, {2}, DType::kBF16, 1);
  EXPECT_NO_THROW(Variable::leaf("w", value, Tensor::zeros(ctx_, {2}, DType::kF32)));
  EXPECT_TRUE(throws_with<Error>(
      [&] { Variable::leaf("w", value, Tensor::zeros(ctx_, {2}, DType::kBF16)); }, {"w", "bf16"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] { Variable::leaf("w", value, Tensor::zeros(ctx_, {3}, DType::kF32)); }, {"[3]"}));
}

TEST_F(TapeTest, AnUndefinedVariableHasNoValue) {
  const Variable none;
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(throws_with<Error>([&] { (void)none.value(); }, {"has none"}));
}

class SeedDtype : public ::testing::TestWithParam<DType> {};

TEST_P(SeedDtype, TheDefaultSeedIsOne) {
  Context ctx;
  Tape tape(ctx);
  Variable x = Variable::leaf("x", Tensor::zeros(ctx, {1}, GetParam()),
                              Tensor::zeros(ctx, {1}, accumulator_dtype(GetParam())));
  double seed = 0.0;
  const Variable y = tape.record("probe", x.value().clone(ctx), {x}, [&](Backward& b) {
    EXPECT_EQ(b.grad().dtype(), GetParam());
    seed = to_doubles(b.grad()).front();
  });
  tape.backward(y);
  EXPECT_EQ(seed, 1.0);
}

INSTANTIATE_TEST_SUITE_P(, SeedDtype, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

}  // namespace
}  // namespace spillway::autograd::testing
