// When the tape reports leaves, frees memory, counts, and forgets after errors.
#include <gtest/gtest.h>

#include "small_ops.h"

namespace spillway::autograd::testing {
namespace {

class TapeLife : public ::testing::Test {
 protected:
  static constexpr int64_t kElements = 1000;
  static constexpr int64_t kTensorBytes = kElements * 8;

  Context ctx_;
  Variable w_ = leaf(ctx_, "w", filled(ctx_, {kElements}, 3.0));
  Variable v_ = leaf(ctx_, "v", filled(ctx_, {kElements}, 5.0));
  Ready ready_;
};

TEST_F(TapeLife, ALeafIsReadyAfterItsLastUseAndOnce) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  // w is used first and last in forward, v between: backward is done with v first.
  tape.backward(sum(tape, multiply(tape, multiply(tape, scale(tape, w_, 2.0), v_), w_)));
  EXPECT_EQ(ready_, (Ready{"v", "w"}));
}

TEST_F(TapeLife, AReadyLeafHasItsWholeGradient) {
  Tape tape(ctx_);
  std::vector<double> when_ready;
  tape.on_leaf_ready([&](const std::string&) { when_ready = to_doubles(w_.grad()); });
  tape.backward(sum(tape, plus(tape, multiply(tape, w_, w_), scale(tape, w_, 4.0))));
  EXPECT_EQ(when_ready, to_doubles(w_.grad()));
  EXPECT_EQ(when_ready.front(), 10.0);
}

TEST_F(TapeLife, ALeafThatIsBothInputsOfAnOpIsReadyOnce) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  tape.backward(sum(tape, multiply(tape, w_, w_)));
  EXPECT_EQ(ready_, (Ready{"w"}));
}

TEST_F(TapeLife, ALeafOffThePathOfTheRootIsReadyToo) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  scale(tape, v_, 2.0);
  tape.backward(sum(tape, scale(tape, w_, 2.0)));
  EXPECT_EQ(ready_, (Ready{"w", "v"}));
}

TEST_F(TapeLife, EveryBackwardReportsAgain) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  for (int pass = 0; pass < 3; ++pass) tape.backward(sum(tape, multiply(tape, w_, v_)));
  EXPECT_EQ(ready_, (Ready{"w", "v", "w", "v", "w", "v"}));
}

TEST_F(TapeLife, ATapeThatIsDroppedBeforeBackwardLeavesNoUseBehind) {
  {
    Tape abandoned(ctx_);
    multiply(abandoned, w_, w_);
  }
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  tape.backward(sum(tape, scale(tape, w_, 2.0)));
  EXPECT_EQ(ready_, (Ready{"w"}));
}

TEST_F(TapeLife, AClearedTapeLeavesNoUseBehind) {
  Tape tape(ctx_);
  report_ready_leaves(tape, ready_);
  multiply(tape, w_, w_);
  tape.clear();
  EXPECT_EQ(tape.num_entries(), 0U);
  tape.backward(sum(tape, scale(tape, w_, 2.0)));
  EXPECT_EQ(ready_, (Ready{"w"}));
}

TEST_F(TapeLife, BackwardGivesAllMemoryBack) {
  const int64_t before = bytes_in_use(ctx_);
  {
    Tape tape(ctx_);
    Variable x = scale(tape, w_, 1.0);
    for (int i = 0; i < 8; ++i) x = multiply(tape, x, v_);
    tape.backward(sum(tape, x));
    // The root's value and x are still held here.
    x = {};
    EXPECT_EQ(bytes_in_use(ctx_), before);
  }
  EXPECT_EQ(bytes_in_use(ctx_), before);
}

TEST_F(TapeLife, MemoryFallsAsBackwardWalks) {
  constexpr int kLayers = 8;
  Tape tape(ctx_);
  std::vector<int64_t> in_use;  // at each layer, walking down
  Variable x = scale(tape, w_, 1.0);
  for (int i = 0; i < kLayers; ++i) {
    const Tensor held = filled(ctx_, {kElements}, 2.0);
    x = tape.record("layer", x.value().clone(ctx_), {x}, [&in_use, held](Backward& b) {
      in_use.push_back(bytes_in_use(b.ctx()));
      b.give(0, b.take_grad());
    });
  }
  const Variable root = sum(tape, x);
  x = {};
  tape.backward(root);
  ASSERT_EQ(in_use.size(), static_cast<size_t>(kLayers));
  for (size_t i = 1; i < in_use.size(); ++i) {
    EXPECT_EQ(in_use[i], in_use[i - 1] - kTensorBytes) << "layer " << i << " from the end";
  }
}

TEST_F(TapeLife, AThrowingBackwardClearsTheTape) {
  const int64_t before = bytes_in_use(ctx_);
  {
    Tape tape(ctx_);
    report_ready_leaves(tape, ready_);
    Variable x = scale(tape, w_, 2.0);
    x = tape.record("bad", x.value().clone(ctx_), {x, v_},
                    [](Backward&) { throw Error("no gradient"); });
    Variable root = sum(tape, x);
    EXPECT_TRUE(throws_with<Error>([&] { tape.backward(root); }, {"no gradient"}));
    x = root = {};
    EXPECT_EQ(tape.num_entries(), 0U);
    EXPECT_EQ(bytes_in_use(ctx_), before);
    EXPECT_TRUE(ready_.empty());
    // The tape and the leaves are as new.
    tape.backward(sum(tape, multiply(tape, w_, v_)));
    EXPECT_EQ(ready_, (Ready{"w", "v"}));
  }
  ctx_.counters().add(&CounterSet::combines);
  EXPECT_EQ(ctx_.counters().backward().combines, 0);
}

TEST_F(TapeLife, CountersKnowWhatBackwardDid) {
  Tape tape(ctx_);
  ctx_.counters().add(&CounterSet::forward_dispatches);
  const Variable y = tape.record("op", w_.value().clone(ctx_), {w_}, [](Backward& b) {
    b.ctx().counters().add(&CounterSet::backward_transports, 2);
  });
  tape.backward(sum(tape, y));
  ctx_.counters().add(&CounterSet::combines);
  const CounterSet total{.forward_dispatches = 1, .combines = 1, .backward_transports = 2};
  EXPECT_EQ(ctx_.counters().total(), total);
  EXPECT_EQ(ctx_.counters().backward(), (CounterSet{.backward_transports = 2}));
}

}  // namespace
}  // namespace spillway::autograd::testing
