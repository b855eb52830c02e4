// main of the MPI test programs: every rank runs the same tests in the same order. The first
// failure on any rank prints its rank and place and ends the job, since the other ranks would
// otherwise wait in a collective until the time limit.
#include <gtest/gtest.h>

#include <iostream>

#include "spillway/comm/communicator.h"

namespace {

class AbortOnFailure : public testing::EmptyTestEventListener {
 public:
  explicit AbortOnFailure(spillway::comm::MpiRuntime& mpi) : mpi_(mpi) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::cerr << "[rank " << mpi_.world_rank() << " of " << mpi_.world_size() << "] FAILED "
              << (test == nullptr ? "?" : test->test_suite_name()) << "."
              << (test == nullptr ? "?" : test->name()) << " at "
              << (result.file_name() == nullptr ? "?" : result.file_name()) << ":"
              << result.line_number() << ": " << result.message() << std::endl;
    mpi_.abort(1);
  }

 private:
  spillway::comm::MpiRuntime& mpi_;
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
