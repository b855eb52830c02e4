#include "spillway/core/error.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "support/throws.h"

namespace spillway {
namespace {

using testing::throws_with;

struct ThrowCase {
  const char* name;
  std::function<void()> raise;
  int exit_code;
};

class ErrorFamily : public ::testing::TestWithParam<ThrowCase> {};

// Numbers, not enumerators: scripts and users rely on them.
TEST_P(ErrorFamily, EndsAProgramWithItsExitCode) {
  try {
    GetParam().raise();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.exit_code()), GetParam().exit_code);
    EXPECT_STREQ(error.what(), "the text");
  }
}

TEST_P(ErrorFamily, IsARuntimeError) { EXPECT_THROW(GetParam().raise(), std::runtime_error); }

INSTANTIATE_TEST_SUITE_P(
    Errors, ErrorFamily,
    ::testing::Values(ThrowCase{"Other", [] { throw Error("the text"); }, 1},
                      ThrowCase{"Config", [] { throw ConfigError("the text"); }, 2},
                      ThrowCase{"Overflow", [] { throw Error("the text", ExitCode::kOverflow); },
                                3},
                      ThrowCase{"Data", [] { throw DataError("the text"); }, 4},
                      ThrowCase{"Comm", [] { throw CommError("the text"); }, 5},
                      ThrowCase{"Diverged", [] { throw DivergedError("the text"); }, 6}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Str, JoinsWhatAStreamPrints) {
  EXPECT_EQ(str("rows ", 3, " of ", int64_t{1} << 40, ' ', 0.5), "rows 3 of 1099511627776 0.5");
  EXPECT_EQ(str(), "");
}

TEST(Check, TrueConditionEvaluatesNoText) {
  int evaluated = 0;
  const auto text = [&] { return ++evaluated; };
  SPILLWAY_CHECK(1 + 1 == 2, "never ", text());
  EXPECT_EQ(evaluated, 0);
  EXPECT_THROW(SPILLWAY_CHECK(1 + 1 == 3, "once ", text()), Error);
  EXPECT_EQ(evaluated, 1);
}

TEST(Check, EvaluatesTheConditionOnce) {
  int evaluated = 0;
  SPILLWAY_CHECK(++evaluated > 0, "");
  EXPECT_EQ(evaluated, 1);
}

TEST(Check, FailureGivesTextExpressionAndPlace) {
  const int rows = 3;
  const std::string line = std::to_string(__LINE__ + 1);
  EXPECT_TRUE(throws_with<Error>([&] { SPILLWAY_CHECK(rows < 3, "rows is ", rows, ", below 3"); },
                                 {"rows is 3, below 3 [check failed: rows < 3 at ",
                                  "tests/unit/core/error_test.cpp:" + line + "]"}));
}

TEST(Check, FailureWithoutTextBeginsWithTheCheck) {
  try {
    SPILLWAY_CHECK(false);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("[check failed: false at ", 0), 0U) << error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kOther);
  }
}

TEST(Check, IsOneStatement) {
  bool else_taken = false;
  if (else_taken)
    SPILLWAY_CHECK(false, "the other branch");
  else
    else_taken = true;
  EXPECT_TRUE(else_taken);
}

struct PlaceCase {
  const char* name;
  const char* file;
  const char* shown;
};

class CheckPlace : public ::testing::TestWithParam<PlaceCase> {};

TEST_P(CheckPlace, StartsAtTheTopOfTheRepository) {
  EXPECT_TRUE(
      throws_with<Error>([] { detail::throw_check("x", GetParam().file, 7, "text"); },
                         {std::string("text [check failed: x at ") + GetParam().shown + ":7]"}));
}

INSTANTIATE_TEST_SUITE_P(
    Errors, CheckPlace,
    ::testing::Values(
        PlaceCase{"Source", "/home/a/spillway/src/ep/session.cpp", "src/ep/session.cpp"},
        PlaceCase{"TreeBelowAnotherSrc", "/usr/src/spillway/src/ep/session.cpp",
                  "src/ep/session.cpp"},
        PlaceCase{"Header", "/home/a/include/spillway/tensor/tensor.h",
                  "include/spillway/tensor/tensor.h"},
        PlaceCase{"HeaderBelowAnotherSrc", "/usr/src/a/include/spillway/tensor/tensor.h",
                  "include/spillway/tensor/tensor.h"},
        PlaceCase{"Test", "/home/a/tests/unit/core/error_test.cpp",
                  "tests/unit/core/error_test.cpp"},
        PlaceCase{"AlreadyRelative", "src/ep/session.cpp", "src/ep/session.cpp"},
        PlaceCase{"Elsewhere", "/home/a/other.cpp", "/home/a/other.cpp"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway
