// 200 reconfigurations in one run, a training step between each two: the bits of a run of one
// capacity, and nothing of a rank grows.
#define OMPI_SKIP_MPICXX 1  // MPI from C only
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "distributed/moe/stack.h"
#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/optim/adamw.h"
#include "spillway/optim/grad_norm.h"
#include "spillway/optim/gradient_sync.h"
#include "support/kernel_test.h"

namespace {

// Communicators that this process has made and not freed: the program's own MPI functions, which
// count and go on to the library's.
int64_t open_communicators = 0;

}  // namespace

extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* fresh) {
  const int code = PMPI_Comm_split(comm, color, key, fresh);
  if (code == MPI_SUCCESS && *fresh != MPI_COMM_NULL) ++open_communicators;
  return code;
}

extern "C" int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* fresh) {
  const int code = PMPI_Comm_dup(comm, fresh);
  if (code == MPI_SUCCESS) ++open_communicators;
  return code;
}

extern "C" int MPI_Comm_free(MPI_Comm* comm) {
  --open_communicators;
  return PMPI_Comm_free(comm);
}

namespace spillway::moe::test {
namespace {

constexpr int64_t kSteps = 200;
// By then every size of buffer has been asked for, and MPI has set up what it keeps.
constexpr int64_t kWarmUp = 60;
constexpr int64_t kLookEvery = 20;
// glibc and MPI keep a little more now and then; a leak of one receive buffer, or of one
// communicator, in every step is several times as much.
constexpr int64_t kRssMargin = int64_t{3} << 20;
// Of the trainer: idle blocks go back once they are half of what a step needs.
constexpr double kMostOverPeak = 1.5;

int64_t open_files() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t whole = 0, resident = 0;
  statm >> whole >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// What a rank holds between two steps.
struct Footprint {
  int64_t current_bytes = 0;  ///< of the allocator, beyond the receive buffers of the capacities
  int64_t cached_bytes = 0;
  int64_t resident = 0;
  int64_t communicators = 0;
  int64_t files = 0;
};

Footprint footprint(Base& base) {
  return {.current_bytes = base.ctx.allocator()->total().current_bytes -
                           base.ctx.allocator()->use(Purpose::kReceive).current_bytes,
          .cached_bytes = base.ctx.allocator()->cached_bytes(),
          .resident = resident_bytes(),
          .communicators = open_communicators,
          .files = open_files()};
}

struct StepOutcome {
  double loss = 0.0, norm_squares = 0.0;
  std::vector<int64_t> demand;  // a layer, the highest of all ranks
};

/// A decoder that learns, without files.
class SmallRun {
 public:
  explicit SmallRun(const Setting& setting)
      : base_(setting),
        decoder_(base_.ctx, base_.config, base_.store),
        optimizer_(base_.ctx, base_.store, base_.topology, {.lr = 1e-2}, false),
        sync_(base_.store, base_.topology, optimizer_.layout()),
        tape_(base_.ctx) {
    sync_.attach(tape_);
  }
  Base& base() { return base_; }

  StepOutcome step(int64_t step) {
    StepOutcome outcome;
    std::vector<LayerRecord> records;
    base_.store.zero_gradients(base_.ctx);
    base_.ctx.allocator()->reset_peaks();
    sync_.begin_last_micro_batch();
    // A few batches that come again and again: demand moves with the weights.
    const auto seed = static_cast<uint64_t>(2 * (step % 5));
    const MoeCall call{.session = base_.session,
                       .step = step,
                       .fused = step % 2 == 1,
                       .token_scale = 1.0 / static_cast<double>(kTokens * base_.world->size()),
                       .records = &records};
    const model::ForwardResult result =
        decoder_.forward(tape_, random_tokens(base_, seed), random_tokens(base_, seed + 1), call);
    tape_.backward(result.objective);
    sync_.finish(base_.ctx);
    outcome.loss = result.loss_sum;
    outcome.norm_squares = optim::norm_squares_contribution(base_.ctx, base_.store, base_.topology,
                                                            optimizer_.layout());
    optimizer_.step(base_.ctx, 1e-2, 1.0, step);
    for (const LayerRecord& record : records) {
      EXPECT_EQ(dropped({record}), 0);
      const std::vector<int64_t>& mine = record.ledger.total_recv_tokens;
      outcome.demand.push_back(base_.max_over_ranks(*std::max_element(mine.begin(), mine.end())));
    }
    give_back_idle_memory();
    return outcome;
  }

  void reconfigure(const std::vector<int64_t>& capacities, ep::ReconfigureMode mode) {
    ep::EpConfig config = ep_config(base_.setting);
    config.recv_capacity_per_rank = capacities;
    base_.session.reconfigure(config, mode);
  }

 private:
  void give_back_idle_memory() {
    Allocator& allocator = *base_.ctx.allocator();
    const MemoryUse use = allocator.total();
    const auto held = static_cast<double>(use.current_bytes + allocator.cached_bytes());
    if (held > kMostOverPeak * static_cast<double>(use.peak_bytes)) allocator.trim();
  }

  Base base_;
  model::Decoder decoder_;
  optim::AdamW optimizer_;
  optim::GradientSync sync_;
  autograd::Tape tape_;
};

constexpr int64_t kAlignments[] = {8, 1};

class ReconfigureTest : public ::testing::TestWithParam<std::tuple<int, int64_t>> {};

/// Anything from just enough to twice what any routing needs; the same on every rank.
std::vector<int64_t> above(const std::vector<int64_t>& demand, const Setting& setting, Rng& rng) {
  std::vector<int64_t> capacities;
  for (const int64_t slots : demand) {
    const int64_t least = std::max(slots, setting.alignment);
    const int64_t spare = (2 * worst_case(setting) - least) / setting.alignment;
    const auto more = static_cast<int64_t>(rng.below(static_cast<uint64_t>(spare) + 1));
    capacities.push_back(least + more * setting.alignment);
  }
  return capacities;
}

TEST_P(ReconfigureTest, TwoHundredTimesInOneRun) {
  const auto& [ep, alignment] = GetParam();
  const Setting setting{.ep = ep, .layers = 2, .alignment = alignment};
  const int64_t communicators_before = open_communicators;
  std::vector<StepOutcome> fixed;
  {
    SmallRun run(setting);
    for (int64_t s = 1; s <= kSteps; ++s) fixed.push_back(run.step(s));
  }
  EXPECT_LT(fixed.back().loss, fixed.front().loss) << "nothing was learnt";
  EXPECT_EQ(open_communicators, communicators_before);

  SmallRun run(setting);
  const int64_t communicators_of_run = open_communicators;
  Rng rng(17);
  std::vector<int64_t> before;
  int64_t changes = 0;
  Footprint warm;
  for (int64_t s = 1; s <= kSteps; ++s) {
    const StepOutcome& wanted = fixed[static_cast<size_t>(s - 1)];
    const std::vector<int64_t> capacities = above(wanted.demand, setting, rng);
    changes += capacities == before ? 0 : 1;
    before = capacities;
    run.reconfigure(capacities, s % 2 == 0 ? ep::ReconfigureMode::kBuffers
                                           : ep::ReconfigureMode::kCommunicator);
    const StepOutcome outcome = run.step(s);
    ASSERT_EQ(outcome.loss, wanted.loss) << "step " << s;
    ASSERT_EQ(outcome.norm_squares, wanted.norm_squares) << "step " << s;
    ASSERT_EQ(outcome.demand, wanted.demand) << "step " << s;
    // The group in use, and one that waits for its end.
    ASSERT_LE(open_communicators, communicators_of_run + 1) << "step " << s;
    const Footprint now = footprint(run.base());
    if (s == kWarmUp) warm = now;
    if (s <= kWarmUp || s % kLookEvery != 0) continue;
    EXPECT_EQ(now.current_bytes, warm.current_bytes) << "step " << s;
    const MemoryUse use = run.base().ctx.allocator()->total();
    EXPECT_LE(static_cast<double>(use.current_bytes + now.cached_bytes),
              kMostOverPeak * static_cast<double>(use.peak_bytes));
    EXPECT_EQ(now.communicators, warm.communicators);
    EXPECT_EQ(now.files, warm.files) << "step " << s;
    EXPECT_LE(now.resident, warm.resident + kRssMargin) << "step " << s;
  }
  EXPECT_GE(changes, kSteps / 2) << "the capacities hardly changed";
  EXPECT_EQ(run.base().session.epoch(), kSteps);
}

INSTANTIATE_TEST_SUITE_P(Grid, ReconfigureTest, ::testing::ValuesIn(grid<int64_t>(kAlignments)),
                         [](const auto& test) {
                           return str(ep_name(std::get<0>(test.param)), "_a",
                                      std::get<1>(test.param));
                         });

/// What the counts rest on: an open communicator is seen, and its end.
TEST(OpenCommunicators, AreCounted) {
  const auto world = comm::make_mpi_world();
  const int64_t before = open_communicators;
  {
    const auto half = world->split(world->rank() % 2, world->rank());
    EXPECT_EQ(open_communicators, before + 1);
  }
  EXPECT_EQ(open_communicators, before);
}

}  // namespace
}  // namespace spillway::moe::test
