// Named saves of recompute regions.
#include <gtest/gtest.h>

#include "small_ops.h"

namespace spillway::autograd::testing {
namespace {

struct SaveCase {
  std::string label;
  std::vector<std::string> save;
  std::string name;
  int computed;  // times, over forward and backward
};

class Saved : public ::testing::TestWithParam<SaveCase> {
 protected:
  Context ctx_;
  Tape tape_{ctx_};
  Variable x_ = leaf(ctx_, "x", filled(ctx_, {2}, 3.0));
};

TEST_P(Saved, IsComputedOnceWhenKept) {
  int computed = 0;
  const auto y = tape_.region({.save = GetParam().save}, x_, [&](const Variable& in) {
    const Tensor factor = tape_.saved(GetParam().name, [&] {
      ++computed;
      return filled(ctx_, {2}, 10.0 * computed);
    });
    return std::vector{multiply(tape_, in, Variable(factor))};
  });
  EXPECT_EQ(y.front().value().data<double>()[0], 30.0);
  tape_.backward(sum(tape_, y.front()));
  EXPECT_EQ(computed, GetParam().computed);
  // The second run works with the kept value, or with one of its own.
  EXPECT_EQ(x_.grad().data<double>()[0], 10.0 * computed);
}

INSTANTIATE_TEST_SUITE_P(
    , Saved,
    ::testing::Values(SaveCase{"kept", {"attention"}, "attention", 1},
                      SaveCase{"among_others", {"router", "attention"}, "attention", 1},
                      SaveCase{"not_kept", {}, "attention", 2},
                      SaveCase{"other_name_kept", {"dispatch"}, "attention", 2},
                      SaveCase{"routing_is_always_kept", {}, std::string(Tape::kAlwaysSaved), 1}),
    [](const auto& param) { return param.param.label; });

class SavedOrder : public ::testing::Test {
 protected:
  double value_of(double value) {
    return tape_.saved("name", [&] { return value; });
  }
  Context ctx_;
  Tape tape_{ctx_};
  Variable x_ = leaf(ctx_, "x", filled(ctx_, {2}, 3.0));
};

TEST_F(SavedOrder, OneNameManyTimesComesBackInOrder) {
  std::vector<double> seen;
  const auto y = tape_.region({.save = {"name"}}, x_, [&](const Variable& in) {
    const double base = tape_.recomputing() ? 100.0 : 0.0;
    for (const double i : {1.0, 2.0, 3.0}) seen.push_back(value_of(base + i));
    return std::vector{scale(tape_, in, 1.0)};
  });
  tape_.backward(sum(tape_, y.front()));
  EXPECT_EQ(seen, (std::vector<double>{1.0, 2.0, 3.0, 1.0, 2.0, 3.0}));
}

TEST_F(SavedOrder, NamesDoNotMix) {
  std::vector<std::string> seen;
  const auto ask = [&](const char* name) {
    seen.push_back(tape_.saved(name, [&] { return std::string(name); }));
  };
  const auto y = tape_.region({.save = {"a", "b"}}, x_, [&](const Variable& in) {
    // The second run asks in another order; each name has a queue of its own.
    ask(tape_.recomputing() ? "b" : "a");
    ask(tape_.recomputing() ? "a" : "b");
    return std::vector{scale(tape_, in, 1.0)};
  });
  tape_.backward(sum(tape_, y.front()));
  EXPECT_EQ(seen, (std::vector<std::string>{"a", "b", "b", "a"}));
}

TEST_F(SavedOrder, AskingMoreOftenThanTheForwardIsAnError) {
  const auto y = tape_.region({.save = {"name"}}, x_, [&](const Variable& in) {
    value_of(1.0);
    if (tape_.recomputing()) value_of(2.0);
    return std::vector{scale(tape_, in, 1.0)};
  });
  EXPECT_TRUE(
      throws_with<Error>([&] { tape_.backward(sum(tape_, y.front())); }, {"'name'", "more often"}));
}

TEST_F(SavedOrder, RegionsKeepApart) {
  std::vector<double> seen;
  Variable x = scale(tape_, x_, 1.0);
  for (const double i : {1.0, 2.0}) {
    x = tape_
            .region({.save = {"name"}}, x,
                    [&, i](const Variable& in) {
                      seen.push_back(value_of(i));
                      return std::vector{scale(tape_, in, 1.0)};
                    })
            .front();
  }
  tape_.backward(sum(tape_, x));
  EXPECT_EQ(seen, (std::vector<double>{1.0, 2.0, 2.0, 1.0}));
}

TEST_F(SavedOrder, OutsideARegionItJustComputes) {
  int computed = 0;
  for (int i = 0; i < 2; ++i) tape_.saved(Tape::kAlwaysSaved, [&] { return ++computed; });
  EXPECT_EQ(computed, 2);
}

TEST_F(SavedOrder, AKeptTensorIsHeldUntilItsRegionIsWalked) {
  const auto holding = [&](std::vector<std::string> save) {
    const int64_t before = bytes_in_use(ctx_);
    tape_.region({.save = std::move(save)}, x_, [&](const Variable& in) {
      tape_.saved("name", [&] { return filled(ctx_, {1000}, 1.0); });
      return std::vector{in};
    });
    const int64_t held = bytes_in_use(ctx_) - before;
    tape_.clear();
    EXPECT_EQ(bytes_in_use(ctx_), before);
    return held;
  };
  EXPECT_EQ(holding({"name"}), 8000);
  EXPECT_EQ(holding({}), 0);
}

/// Bytes that named saves hold.
class SavedBytesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 2 * 8;  // of one value
  Variable save_one(const Variable& x, const std::vector<std::string>& save, const char* name) {
    return tape_
        .region({.save = save}, x,
                [this, name](const Variable& in) {
                  const Tensor factor = tape_.saved(name, [&] { return filled(ctx_, {2}, 2.0); });
                  return std::vector{multiply(tape_, in, Variable(factor))};
                })
        .front();
  }
  MemoryUse use(const char* name) const {
    const auto found = tape_.saved_bytes().find(name);
    return found == tape_.saved_bytes().end() ? MemoryUse{} : found->second;
  }
  Context ctx_;
  Tape tape_{ctx_};
  Variable x_ = leaf(ctx_, "x", filled(ctx_, {2}, 3.0));
};

TEST_F(SavedBytesTest, AreHeldFromForwardUntilTheRegionRunsAgain) {
  const Variable y = save_one(save_one(x_, {"a"}, "a"), {"a"}, "a");
  EXPECT_EQ(use("a").current_bytes, 2 * kBytes);
  tape_.backward(sum(tape_, y));
  EXPECT_EQ(use("a").current_bytes, 0);
  EXPECT_EQ(use("a").peak_bytes, 2 * kBytes);
}

TEST_F(SavedBytesTest, AreKeptApartByName) {
  const Variable y = save_one(save_one(x_, {"a", "b"}, "a"), {"b"}, "a");
  EXPECT_EQ(use("a").current_bytes, kBytes) << "the second region does not save it";
  EXPECT_EQ(use("b").current_bytes, 0);
  tape_.backward(sum(tape_, y));
}

TEST_F(SavedBytesTest, WhatIsAlwaysKeptCountsToo) {
  const std::string name(Tape::kAlwaysSaved);
  const Variable y = save_one(x_, {}, name.c_str());
  EXPECT_EQ(use(name.c_str()).peak_bytes, kBytes);
  tape_.backward(sum(tape_, y));
}

TEST_F(SavedBytesTest, WithoutARegionNothingIsHeld) {
  const Tensor value = tape_.saved("a", [&] { return filled(ctx_, {2}, 2.0); });
  EXPECT_TRUE(tape_.saved_bytes().empty());
}

TEST_F(SavedBytesTest, AnUnusedRegionAndAFailedForwardHoldNothing) {
  save_one(x_, {"a"}, "a");
  tape_.backward(sum(tape_, scale(tape_, x_, 1.0)));
  EXPECT_EQ(use("a").current_bytes, 0) << "nobody used the region's output";
  save_one(x_, {"a"}, "a");
  tape_.clear();
  EXPECT_EQ(use("a").current_bytes, 0);
  EXPECT_THROW(tape_.region({.save = {"a"}}, x_,
                            [&](const Variable&) -> std::vector<Variable> {
                              tape_.saved("a", [&] { return filled(ctx_, {2}, 2.0); });
                              throw Error("overflow");
                            }),
               Error);
  EXPECT_EQ(use("a").current_bytes, 0);
}

TEST_F(SavedBytesTest, PeaksStartAgain) {
  tape_.backward(sum(tape_, save_one(save_one(x_, {"a"}, "a"), {"a"}, "a")));
  const Variable y = save_one(x_, {"a"}, "a");
  tape_.reset_saved_peaks();
  EXPECT_EQ(use("a").peak_bytes, kBytes) << "from what is held now";
  tape_.backward(sum(tape_, y));
  tape_.reset_saved_peaks();
  EXPECT_EQ(use("a").peak_bytes, 0);
}

TEST_F(SavedBytesTest, OfEveryKindOfValue) {
  const Tensor two = filled(ctx_, {2}, 2.0);
  EXPECT_EQ(held_bytes(two), 16);
  EXPECT_EQ(held_bytes(Tensor()), 0);
  EXPECT_EQ(held_bytes(std::pair(two, filled(ctx_, {3}, 1.0))), 40);
  EXPECT_EQ(held_bytes(std::pair(two, int64_t{1})), 24);
  EXPECT_EQ(held_bytes(std::string("four")), 4);
}

}  // namespace
}  // namespace spillway::autograd::testing
