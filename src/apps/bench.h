#pragma once
// What `bench` can measure: one function a subcommand, each giving its JSON line.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "spillway/comm/communicator.h"

namespace spillway::bench {

using Json = nlohmann::ordered_json;

struct StepOptions {
  std::string config_path;
  std::vector<std::string> assignments;
  int64_t steps = 10, warmup = 3;
};

struct MatmulOptions {
  int64_t m = 2048, n = 2048, k = 2048, repeat = 10;
  std::string dtype = "f32";
};

struct EpOptions {
  int64_t tokens = 4096;  // a rank
  int64_t hidden = 1024, top_k = 2, experts = 16, alignment = 1;
  std::string dtype = "f32";
  uint64_t seed = 1;
  int64_t warmup = 3, repeat = 20;
};

struct PlanOptions {
  int64_t tokens = 32768;  // a rank
  int64_t top_k = 8, experts = 128, ep = 8, alignment = 1;
  double skew = 0.0;      // expert e is chosen in proportion to (e + 1)^-skew
  double capacity = 1.0;  // fraction of the largest demand: below 1, rows are dropped
  std::string order = "tail";
  uint64_t seed = 1;
  int64_t warmup = 3, repeat = 20;
};

/// A training step of a config on random bytes.
Json time_step(const StepOptions& options, comm::Communicator& world);
/// A plain product.
Json time_matmul(const MatmulOptions& options);
/// prepare + dispatch + combine over all ranks against two MPI_Alltoallv of the same bytes.
/// Collective of the world.
Json time_ep(const EpOptions& options, comm::Communicator& world);
/// Planning one rank's rows from a count matrix.
Json time_plan(const PlanOptions& options);

/// {median, min, max} of milliseconds or microseconds.
Json spread_json(const std::vector<double>& values);

}  // namespace spillway::bench
