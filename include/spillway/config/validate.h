#pragma once
// Validation of the whole config against the world, before anything is allocated.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/config/config.h"

namespace spillway::config {

struct ValidateOptions {
  /// Takes `run.device` "cuda" in a build without it: to look at a config only.
  bool accept_cuda = false;
};

/// Throws ConfigError for the first problem, in the order of the sections and then of what spans
/// several; the text is one line under 300 characters with JSON path, value and what is allowed.
/// Opens no file. Returns warnings ("path text"): allowed, but probably not meant.
std::vector<std::string> validate(const Config& config, int64_t world_size,
                                  const ValidateOptions& options = {});

}  // namespace spillway::config
