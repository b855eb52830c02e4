#pragma once
// A good small config, and what every refusal of a config must look like.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "spillway/config/config.h"
#include "spillway/config/json.h"
#include "spillway/core/error.h"
#include "support/throws.h"

namespace spillway::config {

using spillway::testing::expect_holds;

/// Valid at world 4.
inline const std::string kGoodText = R"({
  "model": {"hidden": 32, "layers": 3, "heads": 4, "kv_heads": 2, "max_seq": 64},
  "moe": {"experts": 8, "top_k": 2, "ffn": 16, "alignment": 8},
  "parallel": {"ep": 4},
  "data": {"train": ["a.txt"], "seq": 32},
  "optim": {"warmup_steps": 5},
  "train": {"steps": 50}
})";

inline std::string with(std::string text, const std::vector<std::string>& assignments) {
  for (const std::string& assignment : assignments) text = apply_set(text, assignment);
  return text;
}

inline Config good_config(const std::vector<std::string>& assignments = {}) {
  return parse(with(kGoodText, assignments));
}

/// The text of the ConfigError that `body` throws, with the checks that hold for all of them;
/// empty, and a failure, when it throws none.
inline std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
    EXPECT_LT(text.size(), 300U) << text;
    for (const char byte : text) {
      EXPECT_TRUE(static_cast<unsigned char>(byte) >= ' ') << "not one line: " << text;
    }
    return text;
  }
  ADD_FAILURE() << "accepted";
  return {};
}

}  // namespace spillway::config
