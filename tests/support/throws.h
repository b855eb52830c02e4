#pragma once
// Checks of what a call throws.

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::testing {

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
