// A checkpoint of any (world, ep, zero) loads at any other: every weight, moment, master and bias
// is compared element by element, by its place in the whole model.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "support/checkpoint_fixture.h"
#include "support/shared_folder.h"

namespace spillway::checkpoint {
namespace {

constexpr int kSalt = 3;

struct Split {
  int world = 1;
  int ep = 1;
  bool zero = false;
};
std::string name_of(const Split& s) {
  return str("world", s.world, "ep", s.ep, s.zero ? "zero" : "");
}

struct ReshardCase {
  ModelCase model;
  DType dtype;
  Split from, to;
};
void PrintTo(const ReshardCase& c, std::ostream* out) {
  *out << c.model.name << "_" << dtype_name(c.dtype) << "_" << name_of(c.from) << "_to_"
       << name_of(c.to);
}

int job_size() { return comm::make_mpi_world()->size(); }

/// Every split that the job's ranks can make up, to every other (small ones among themselves are
/// left to smaller jobs).
std::vector<ReshardCase> reshard_cases() {
  const int size = job_size();
  std::vector<Split> splits;
  for (int world = 1; world <= size; world *= 2) {
    for (int ep = 1; ep <= world; ep *= 2) {
      for (const bool zero : {false, true}) splits.push_back({world, ep, zero});
    }
  }
  std::vector<ReshardCase> cases;
  const std::vector<ModelCase> models = model_cases();
  for (const Split& from : splits) {
    for (const Split& to : splits) {
      if (from.world < size && to.world < size) continue;
      const size_t i = cases.size();
      cases.push_back({models[i % models.size()],
                       (i / models.size()) % 2 == 0 ? DType::kBF16 : DType::kF32, from, to});
    }
  }
  return cases;
}

class Resharding : public ::testing::TestWithParam<ReshardCase> {
 protected:
  Resharding() : job_(comm::make_mpi_world()), folder_(*job_) {}

  /// Runs on the first `split.world` ranks, as a world of their own; the others wait.
  template <typename F>
  void with_replica(const Split& split, F&& body) {
    const bool member = job_->rank() < split.world;
    const auto world = job_->split(member ? 0 : 1, job_->rank());
    if (member) {
      comm::Topology topology(*world, split.ep);
      Replica replica(topology, GetParam().model, GetParam().dtype, split.zero);
      body(replica);
    }
    job_->barrier();
  }

  std::unique_ptr<comm::Communicator> job_;
  testing::SharedFolder folder_;
};

TEST_P(Resharding, EveryElementIsWhereItWas) {
  const auto [model, dtype, from, to] = GetParam();
  with_replica(from, [&](Replica& replica) {
    replica.fill(kSalt);
    const SaveResult saved = save(replica.ctx, folder_.path(), replica.parts(), state_at(12), 2);
    EXPECT_EQ(saved.path, folder_.path() + "/checkpoints/step-00000012");
    int64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(saved.path)) {
      if (entry.path().filename() != "COMMITTED") bytes += static_cast<int64_t>(entry.file_size());
    }
    EXPECT_EQ(saved.bytes, bytes);
  });
  with_replica(to, [&](Replica& replica) {
    const std::string path = find_newest(folder_.path()).value();
    const RunState state = read_state(path);
    EXPECT_EQ(state.world, from.world);
    EXPECT_EQ(state.ep, from.ep);
    replica.spoil();
    EXPECT_FALSE(replica.holds(kSalt));
    load(replica.ctx, path, replica.parts());
    EXPECT_TRUE(replica.holds(kSalt));
  });
}
INSTANTIATE_TEST_SUITE_P(Splits, Resharding, ::testing::ValuesIn(reshard_cases()),
                         [](const auto& c) { return ::testing::PrintToString(c.param); });

}  // namespace
}  // namespace spillway::checkpoint
