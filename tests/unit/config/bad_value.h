#pragma once
// One row of the tables of bad configs.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/config/validate.h"
#include "support.h"

namespace spillway::config {

struct BadValue {
  const char* name;
  std::vector<std::string> assignments;  ///< on the good config
  std::string path;                      ///< what the text begins with
  std::string value;
  std::vector<std::string> words;  ///< of what is allowed
  int64_t world = 4;
};

/// The config with the row's assignments is refused, and the text is as the row says.
inline void expect_refused(const BadValue& row) {
  const std::string text =
      refusal([&] { (void)validate(good_config(row.assignments), row.world); });
  EXPECT_EQ(text.rfind(row.path + " ", 0), 0U) << text;
  expect_holds(text, {" " + row.value, "allowed:"});
  expect_holds(text, row.words);
}

inline std::string row_name(const ::testing::TestParamInfo<BadValue>& row) {
  return row.param.name;
}

}  // namespace spillway::config
