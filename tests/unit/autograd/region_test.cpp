// Recompute regions: the same bits with less memory.
#include <gtest/gtest.h>

#include "small_ops.h"

namespace spillway::autograd::testing {
namespace {

class RegionTest : public ::testing::Test {
 protected:
  static constexpr int64_t kElements = 64;

  /// x w^2 + x^2 w: two uses of the input and of the leaf.
  Variable block(Tape& tape, const Variable& x) {
    const Variable a = multiply(tape, x, w_);
    return plus(tape, multiply(tape, a, w_), multiply(tape, x, a));
  }
  Variable scalar(Tape& tape, const Variable& x) { return sum(tape, multiply(tape, x, v_)); }

  Context ctx_;
  Variable w_ = leaf(ctx_, "w", random_tensor(ctx_, {kElements}, DType::kF64, 1));
  Variable v_ = leaf(ctx_, "v", random_tensor(ctx_, {kElements}, DType::kF64, 2));
  Variable x_ = leaf(ctx_, "x", random_tensor(ctx_, {kElements}, DType::kF64, 3, 0.1));
  Ready ready_;
};

/// How many blocks in a row, and how many of them a region holds.
struct Depth {
  int blocks;
  int in_a_region;
};
class RegionDepth : public RegionTest, public ::testing::WithParamInterface<Depth> {
 protected:
  struct Run {
    Tensor loss, dw, dv, dx;
  };
  Run run(bool with_regions) {
    for (Variable* v : {&w_, &v_, &x_}) v->grad().zero();
    Tape tape(ctx_);
    Variable x = scale(tape, x_, 1.0);
    for (int i = 0; i < GetParam().blocks; i += GetParam().in_a_region) {
      const auto body = [&, this](const Variable& input) {
        Variable y = input;
        for (int k = 0; k < GetParam().in_a_region; ++k) y = block(tape, y);
        return std::vector<Variable>{y};
      };
      x = with_regions ? tape.region({}, x, body).front() : body(x).front();
    }
    const Variable loss = scalar(tape, x);
    tape.backward(loss);
    return {loss.value(), w_.grad().clone(ctx_), v_.grad().clone(ctx_), x_.grad().clone(ctx_)};
  }
};

TEST_P(RegionDepth, GivesTheBitsOfAPlainRun) {
  const Run plain = run(false);
  const Run again = run(true);
  EXPECT_TRUE(same_bytes(plain.loss, again.loss));
  EXPECT_TRUE(same_bytes(plain.dv, again.dv));
  EXPECT_TRUE(same_bytes(plain.dx, again.dx));
  // A leaf's gradient adds up in the order of the walk, which regions do not change.
  EXPECT_TRUE(same_bytes(plain.dw, again.dw));
  EXPECT_NE(to_doubles(plain.dx).front(), 0.0);
}

INSTANTIATE_TEST_SUITE_P(, RegionDepth, ::testing::Values(Depth{1, 1}, Depth{4, 1}, Depth{6, 3}),
                         [](const auto& param) {
                           return str("blocks", param.param.blocks, "_by", param.param.in_a_region);
                         });

TEST_F(RegionTest, KeepsItsInputOnly) {
  constexpr int64_t kTensor = kElements * 8;
  Tape plain(ctx_), with_region(ctx_);
  const int64_t start = bytes_in_use(ctx_);
  const Variable x{x_.value()};
  Variable y = block(plain, x);
  const int64_t without = bytes_in_use(ctx_) - start;
  plain.clear();
  y = {};
  ASSERT_EQ(bytes_in_use(ctx_), start);
  const auto outputs = with_region.region(
      {}, x, [&](const Variable& in) { return std::vector{block(with_region, in)}; });
  // The output; x is a leaf's value that was there before.
  EXPECT_EQ(bytes_in_use(ctx_) - start, kTensor);
  EXPECT_GE(without, 2 * kTensor);
}

TEST_F(RegionTest, GivesItsMemoryBack) {
  const int64_t start = bytes_in_use(ctx_);
  {
    Tape tape(ctx_);
    std::vector<Variable> y = tape.region({.save = {"kept"}}, x_, [&](const Variable& in) {
      const Tensor kept = tape.saved("kept", [&] { return filled(ctx_, {kElements}, 2.0); });
      return std::vector{multiply(tape, block(tape, in), Variable(kept))};
    });
    tape.backward(scalar(tape, y.front()));
    y.clear();
    EXPECT_EQ(bytes_in_use(ctx_), start);
  }
}

TEST_F(RegionTest, SeveralOutputsEachGetTheirGradient) {
  Tape tape(ctx_);
  const auto outputs = tape.region({}, x_, [&](const Variable& in) {
    return std::vector{scale(tape, in, 2.0), multiply(tape, in, w_), scale(tape, in, 100.0)};
  });
  ASSERT_EQ(outputs.size(), 3U);
  tape.backward(sum(tape, plus(tape, outputs[0], outputs[1])));  // the third is not used
  for (int64_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(x_.grad().data<double>()[i], 2.0 + w_.value().data<double>()[i]);
  }
}

TEST_F(RegionTest, AnOutputThatIsTheInputPassesItsGradientOn) {
  Tape tape(ctx_);
  const auto outputs = tape.region({}, x_, [&](const Variable& in) {
    return std::vector{in, scale(tape, in, 2.0)};
  });
  tape.backward(sum(tape, plus(tape, outputs[0], outputs[1])));
  EXPECT_EQ(to_doubles(x_.grad()), std::vector<double>(kElements, 3.0));
}

TEST_F(RegionTest, AConstantOutputIsNoTrouble) {
  Tape tape(ctx_);
  const Variable constant{filled(ctx_, {kElements}, 4.0)};
  const auto outputs = tape.region({}, x_, [&](const Variable& in) {
    return std::vector{scale(tape, in, 2.0), constant};
  });
  tape.backward(sum(tape, plus(tape, outputs[0], outputs[1])));
  EXPECT_EQ(to_doubles(x_.grad()), std::vector<double>(kElements, 2.0));
}

TEST_F(RegionTest, LeavesInsideGetTheirGradientsWhenTheInputIsAConstant) {
  Tape tape(ctx_);
  const Variable constant{x_.value()};
  const auto outputs = tape.region(
      {}, constant, [&](const Variable& in) { return std::vector{multiply(tape, in, w_)}; });
  tape.backward(sum(tape, outputs.front()));
  EXPECT_TRUE(same_bytes(w_.grad(), x_.value()));
}

TEST_F(RegionTest, RunsItsBodyOnceMoreInBackward) {
  Tape tape(ctx_);
  std::vector<bool> recomputing;
  const auto outputs = tape.region({}, x_, [&](const Variable& in) {
    recomputing.push_back(tape.recomputing());
    return std::vector{tape.record("probe", in.value().clone(ctx_), {in}, [&](Backward& b) {
      // The walk itself records nothing and counts nothing twice.
      EXPECT_FALSE(tape.recomputing());
      b.give(0, b.take_grad());
    })};
  });
  EXPECT_FALSE(tape.recomputing());
  tape.backward(scalar(tape, outputs.front()));
  EXPECT_EQ(recomputing, (std::vector<bool>{false, true}));
  EXPECT_FALSE(tape.recomputing());
}

TEST_F(RegionTest, RunsItsBodyOnceWithoutRecording) {
  Tape tape(ctx_, false);
  int runs = 0;
  const auto outputs = tape.region({}, x_, [&](const Variable& in) {
    ++runs;
    return std::vector{scale(tape, in, 2.0)};
  });
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(outputs.front().requires_grad());
}

TEST_F(RegionTest, TheSecondRunCountsAsBackward) {
  Tape tape(ctx_);
  const auto outputs = tape.region({}, x_, [&](const Variable& in) {
    ctx_.counters().add(&CounterSet::prepares);
    return std::vector{scale(tape, in, 2.0)};
  });
  tape.backward(sum(tape, outputs.front()));
  EXPECT_EQ(ctx_.counters().total().prepares, 2);
  EXPECT_EQ(ctx_.counters().backward().prepares, 1);
}

TEST_F(RegionTest, LeavesAreReadyOnceAfterTheirLastUse) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  Variable x = scale(tape, x_, 1.0);
  for (int i = 0; i < 2; ++i) {
    x = tape.region({}, x, [&](const Variable& in) { return std::vector{block(tape, in)}; })
            .front();
  }
  tape.backward(scalar(tape, multiply(tape, x, v_)));
  // w in both regions, v above them in two ops.
  EXPECT_EQ(ready_, (Ready{"v", "w", "x"}));
}

TEST_F(RegionTest, ALeafInsideAndBelowIsReadyBelow) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  const Variable x = multiply(tape, x_, w_);
  const auto y = tape.region({}, x, [&](const Variable& in) {
    return std::vector{multiply(tape, multiply(tape, in, w_), v_)};
  });
  tape.backward(sum(tape, y.front()));
  EXPECT_EQ(ready_, (Ready{"v", "x", "w"}));
}

TEST_F(RegionTest, LeavesOfARegionThatNobodyUsesAreReadyAllTheSame) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  int runs = 0;
  tape.region({}, x_, [&](const Variable& in) {
    ++runs;
    return std::vector{multiply(tape, in, w_)};
  });
  tape.backward(sum(tape, scale(tape, v_, 2.0)));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(ready_, (Ready{"v", "w", "x"}));
}

TEST_F(RegionTest, RegionsDoNotNest) {
  Tape tape(ctx_);
  const auto inner = [&](const Variable& in) {
    return tape.region({}, in, [&](const Variable& x) { return std::vector{block(tape, x)}; });
  };
  EXPECT_TRUE(throws_with<Error>([&] { tape.region({}, x_, inner); }, {"do not nest"}));
  // The tape goes on, and the failed body left no use of a leaf behind after clear.
  tape.clear();
  report_ready_leaves(tape, ready_);
  tape.backward(sum(tape, inner(x_).front()));
  EXPECT_EQ(ready_, (Ready{"w", "x"}));
}

TEST_F(RegionTest, AThrowInTheSecondRunClearsTheTape) {
  Tape tape(ctx_);
  const Variable below = scale(tape, x_, 2.0);
  const auto y = tape.region({}, below, [&](const Variable& in) {
    if (tape.recomputing()) throw Error("second run failed");
    return std::vector{block(tape, in)};
  });
  EXPECT_TRUE(
      throws_with<Error>([&] { tape.backward(sum(tape, y.front())); }, {"second run failed"}));
  EXPECT_EQ(tape.num_entries(), 0U);
  EXPECT_FALSE(tape.recomputing());
  report_ready_leaves(tape, ready_);
  tape.backward(sum(tape, multiply(tape, x_, w_)));
  EXPECT_EQ(ready_, (Ready{"x", "w"}));
}

TEST_F(RegionTest, AValueMayBeLeftOutInTheSecondRun) {
  Tape tape(ctx_);
  const auto twice_without_value = [](Backward& b) {
    b.give(0, times(b.ctx(), b.grad(), filled(b.ctx(), b.grad().shape(), 2.0)));
  };
  const auto y = tape.region({}, x_, [&](const Variable& in) {
    if (!tape.recomputing()) return std::vector{scale(tape, in, 2.0)};
    const Variable out =
        tape.record_without_value("twice", in.shape(), in.dtype(), {in}, twice_without_value);
    EXPECT_FALSE(out.has_value());
    EXPECT_TRUE(throws_with<Error>([&] { (void)out.value(); }, {"[64]", "has none"}));
    return std::vector{out};
  });
  tape.backward(sum(tape, y.front()));
  EXPECT_EQ(to_doubles(x_.grad()), std::vector<double>(kElements, 2.0));
}

TEST_F(RegionTest, OnlyASecondRunMayLeaveAValueOut) {
  Tape tape(ctx_);
  EXPECT_TRUE(throws_with<Error>(
      [&] { tape.record_without_value("combine", {2}, DType::kF64, {x_}, [](Backward&) {}); },
      {"combine", "no value"}));
}

}  // namespace
}  // namespace spillway::autograd::testing
