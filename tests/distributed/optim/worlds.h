#pragma once
// What the distributed tests of optim share: the worlds they run in.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "spillway/comm/topology.h"
#include "unit/optim/small_model.h"

namespace spillway::optim {

/// The divisors of the world size. Evaluated when the tests are registered: MPI is up by then.
inline std::vector<int> ep_sizes() {
  const int world = comm::make_mpi_world()->size();
  std::vector<int> sizes;
  for (int ep = 1; ep <= world; ++ep) {
    if (world % ep == 0) sizes.push_back(ep);
  }
  return sizes;
}

inline std::string ep_name(const testing::TestParamInfo<int>& info) {
  return "ep" + std::to_string(info.param);
}

/// One topology and the small model's slice of this rank.
struct RankModel {
  explicit RankModel(int ep, DType dtype = DType::kF32)
      : world(comm::make_mpi_world()),
        topology(*world, ep),
        store(ctx, small_model(dtype), kModelSeed, ep, topology.ep_rank()) {}

  Context ctx;
  std::unique_ptr<comm::Communicator> world;
  comm::Topology topology;
  nn::ParameterStore store;
};

/// A small integer gradient that names its rank: sums of different sets of ranks differ, and f32
/// holds all of them exactly.
inline float gradient_of(int rank, int64_t position, int64_t index) {
  const auto base = static_cast<float>((position * 5 + index * 3) % 11 - 5);
  return base * static_cast<float>(1 << (3 * rank));
}

/// The sum that `rank` must end with: over the world, or over the ranks of its EP index.
inline float summed_gradient(nn::SyncGroup group, int rank, int world, int ep, int64_t position,
                             int64_t index) {
  float sum = 0.0F;
  for (int other = 0; other < world; ++other) {
    const bool counts = group == nn::SyncGroup::kDense || other % ep == rank % ep;
    if (counts) sum += gradient_of(other, position, index);
  }
  return sum;
}

}  // namespace spillway::optim
