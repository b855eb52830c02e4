#pragma once
// Checks of what a call throws.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::testing {

/// The text of the Error that `call` throws; empty when it throws none.
template <typename F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

inline void expect_holds(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

/// The call throws E with a text that holds every part.
template <typename E, typename F>
::testing::AssertionResult throws_with(F&& call, const std::vector<std::string>& parts) {
  try {
    call();
  } catch (const E& error) {
    const std::string text = error.what();
    for (const std::string& part : parts) {
      if (text.find(part) == std::string::npos) {
        return ::testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
      }
    }
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace spillway::testing
