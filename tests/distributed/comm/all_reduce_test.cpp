// Sums in rank order: the bits of a plain loop over ranks, on every rank.
#include <gtest/gtest.h>

#include <cstring>

#include "spillway/comm/communicator.h"

namespace spillway::comm {
namespace {

// Magnitudes far apart, so that another order of additions gives other bits. Not inlined: fused
// into the additions of the reference it would give other bits too.
template <typename T>
[[gnu::noinline]] T term(int rank, int64_t i) {
  const T scale = static_cast<T>((rank + i) % 3 == 0 ? 1e7 : 1.0);
  return scale *
         (static_cast<T>(1) / static_cast<T>(3 + rank + 7 * (i % 11)) - static_cast<T>(0.1));
}

struct Case {
  DType dtype;
  int64_t numel;
};

class AllReduceSum : public testing::TestWithParam<Case> {};

template <typename T>
void check_sum(Communicator& comm, int64_t numel) {
  Context ctx;
  Tensor values = Tensor::empty(ctx, {numel}, DTypeOf<T>::value);
  for (int64_t i = 0; i < numel; ++i) values.data<T>()[i] = term<T>(comm.rank(), i);
  comm.all_reduce_sum(ctx, values);
  for (int64_t i = 0; i < numel; ++i) {
    T expected = term<T>(0, i);
    for (int rank = 1; rank < comm.size(); ++rank) expected += term<T>(rank, i);
    ASSERT_EQ(std::memcmp(&expected, values.data<T>() + i, sizeof(T)), 0)
        << "element " << i << ": " << values.data<T>()[i] << ", expected " << expected;
  }
  EXPECT_EQ(ctx.allocator()->use(Purpose::kWorkspace).current_bytes, 0);
}

TEST_P(AllReduceSum, HasTheBitsOfALoopOverRanks) {
  const auto world = make_mpi_world();
  if (GetParam().dtype == DType::kF32) {
    check_sum<float>(*world, GetParam().numel);
  } else {
    check_sum<double>(*world, GetParam().numel);
  }
}

TEST_P(AllReduceSum, DoesNotDependOnTheSizeOfMessages) {
  const auto world = make_mpi_world(12);
  if (GetParam().dtype == DType::kF32) {
    check_sum<float>(*world, std::min<int64_t>(GetParam().numel, 130));
  } else {
    check_sum<double>(*world, std::min<int64_t>(GetParam().numel, 130));
  }
}

TEST_P(AllReduceSum, SumsWithinAGroupOnly) {
  const auto world = make_mpi_world();
  const auto group = world->split(world->rank() / 2, world->rank());
  if (GetParam().dtype == DType::kF32) {
    check_sum<float>(*group, GetParam().numel);
  } else {
    check_sum<double>(*group, GetParam().numel);
  }
}

// Fewer elements than ranks, chunks of unequal size, many.
INSTANTIATE_TEST_SUITE_P(Sizes, AllReduceSum,
                         testing::Values(Case{DType::kF32, 0}, Case{DType::kF32, 1},
                                         Case{DType::kF32, 3}, Case{DType::kF32, 5},
                                         Case{DType::kF32, 1000}, Case{DType::kF32, 65537},
                                         Case{DType::kF64, 0}, Case{DType::kF64, 1},
                                         Case{DType::kF64, 6}, Case{DType::kF64, 4099}),
                         [](const auto& test) {
                           return std::string(dtype_name(test.param.dtype)) + "_" +
                                  std::to_string(test.param.numel);
                         });

TEST(AllReduceSumErrors, NamesTheDtypeOnEveryRank) {
  const auto world = make_mpi_world();
  Context ctx;
  Tensor values = Tensor::zeros(ctx, {4}, DType::kBF16);
  try {
    world->all_reduce_sum(ctx, values);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("all_reduce_sum of bf16; allowed: f32, f64"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace spillway::comm
