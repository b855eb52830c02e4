// main of the MPI test programs: every rank runs the same tests in the same order. The first
// failure on any rank prints its rank and place and ends the job, since the other ranks would
// otherwise wait in a collective until the time limit.
#include <gtest/gtest.h>

#include <iostream>

#include "spillway/comm/mpi_runtime.h"

namespace {

class AbortOnFailure : public testing::EmptyTestEventListener {
 public:
  explicit AbortOnFailure(spillway::comm::MpiRuntime& mpi) : mpi_(mpi) {}
  // Remembered here: asking UnitTest for it while it reports a result would wait for a lock that
  // it holds.
  void OnTestStart(const testing::TestInfo& test) override { test_ = &test; }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "[rank " << mpi_.world_rank() << " of " << mpi_.world_size() << "] FAILED "
              << (test_ == nullptr ? "?" : test_->test_suite_name()) << "."
              << (test_ == nullptr ? "?" : test_->name()) << " at "
              << (result.file_name() == nullptr ? "?" : result.file_name()) << ":"
              << result.line_number() << ": " << result.message() << std::endl;
    mpi_.abort(1);
  }

 private:
  spillway::comm::MpiRuntime& mpi_;
  const testing::TestInfo* test_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  spillway::comm::MpiRuntime mpi(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  // Only rank 0 reports; the others speak when they fail.
  if (mpi.world_rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new AbortOnFailure(mpi));
  return RUN_ALL_TESTS();
}
