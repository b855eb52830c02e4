#pragma once
// What the trainer's tests share: a small text, a small config, worlds of 1, 2 and 4 ranks within
// one job, and what a run ends with, gathered by name.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "spillway/config/config.h"
#include "spillway/train/trainer.h"

namespace spillway::train {

/// world = ep x dp.
struct Split {
  int ep = 1;
  int dp = 1;
  int world() const { return ep * dp; }
};
std::string split_name(const Split& split);
/// Those of 1x1, 2x1, 1x2, 4x1, 2x2, 1x4 that the job's ranks can make up; of a job of 8 ranks
/// those that need all of them. Evaluated when the tests are registered: MPI is up by then.
std::vector<Split> all_splits();
/// Only those with ep > 1; may be empty.
std::vector<Split> expert_parallel_splits();
/// 1, 2, 4 as far as the job's ranks go.
std::vector<int> world_sizes();

/// One test: a temporary folder that all ranks see, with a seeded text in it. Every rank of the job
/// runs the body; what only some ranks do stands under `first_ranks`.
class TrainTest : public testing::Test {
 protected:
  TrainTest();
  ~TrainTest() override;

  comm::Communicator& world() { return *world_; }
  bool is_root() const { return world_->rank() == 0; }
  const std::filesystem::path& folder() const { return folder_; }
  std::string text_path() const { return (folder_ / "text.txt").string(); }
  /// hidden 32, 2 layers, 8 experts, top 2, sequences of 32 bytes, f32, worst-case buffers, no
  /// balance terms, update close to plain gradient descent. Valid for any world.
  config::Config base_config() const;
  /// Ranks [0, n) of the job as a world of their own, null on the others. Collective of the job.
  std::unique_ptr<comm::Communicator> first_ranks(int n);

 private:
  std::unique_ptr<comm::Communicator> world_;
  std::filesystem::path folder_;
};

/// `base` spread over `split` with the same global batch: micro_batch x grad_accum as given.
config::Config with_split(config::Config base, const Split& split, int64_t micro_batch,
                          int64_t grad_accum);

/// A trainer with all that it refers to. Validates the config; collective of `world`.
struct TrainRun {
  TrainRun(comm::Communicator& world, const config::Config& config);

  comm::Communicator& world;
  config::Config config;
  Context ctx;
  SignalGate signals;
  Trainer trainer;
};

using StepResults = std::vector<Trainer::StepResult>;
/// Steps [first, first + count).
StepResults train_steps(TrainRun& run, int64_t first, int64_t count);

/// A name of the whole model to all its elements: expert parameters are put together from the
/// ranks of the first EP group.
using NamedValues = std::map<std::string, std::vector<float>>;
/// Collectives of the run's world; filled on its rank 0, empty elsewhere.
NamedValues gather_gradients(TrainRun& run);
NamedValues gather_weights(TrainRun& run);
/// Bits of all weights of this rank in one number.
uint64_t weights_checksum(TrainRun& run);

/// |a - b| / |b| in L2; |a| when b is zero. Sizes must agree.
double relative_l2(const std::vector<float>& a, const std::vector<float>& b);
/// Every parameter within `tolerance`; the failure names the worst one.
testing::AssertionResult close(const NamedValues& actual, const NamedValues& expected,
                               double tolerance);
/// The same names and bits.
testing::AssertionResult same_bits(const NamedValues& actual, const NamedValues& expected);
testing::AssertionResult same_bits(double actual, double expected);
/// |a - b| <= tolerance * |b|.
testing::AssertionResult close(double actual, double expected, double tolerance);

/// Assignments by (layer, expert) of one step, summed over EP groups and micro-batches (rank 0).
std::map<int64_t, std::vector<int64_t>> expert_tokens(const Trainer::StepResult& result);
/// Sums over the steps (rank 0).
int64_t total_grow_events(const StepResults& steps);
int64_t total_dropped(const StepResults& steps);
int64_t sum(const std::vector<int64_t>& values);

}  // namespace spillway::train
