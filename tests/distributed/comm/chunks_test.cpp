// The halves of a sum over ranks: who owns which chunk, the sum of the own chunk, and chunks
// gathered from their owners.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "spillway/comm/communicator.h"

namespace spillway::comm {
namespace {

TEST(ChunkOf, CoversEveryElementOnceInRankOrder) {
  for (const int size : {1, 2, 3, 4, 7, 64}) {
    for (const int64_t numel : {0, 1, 2, 3, 5, 6, 7, 8, 63, 64, 65, 1000, 4097}) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Chunk chunk = chunk_of(rank, size, numel);
        EXPECT_EQ(chunk.begin, end) << rank << " of " << size << ", " << numel;
        EXPECT_GE(chunk.count, 0);
        EXPECT_LE(chunk.count, (numel + size - 1) / size);
        end += chunk.count;
      }
      EXPECT_EQ(end, numel) << size << " ranks";
    }
  }
}

TEST(ChunkOf, TheLastRanksHaveLessOrNothing) {
  EXPECT_EQ(chunk_of(0, 4, 6), (Chunk{0, 2}));
  EXPECT_EQ(chunk_of(2, 4, 6), (Chunk{4, 2}));
  EXPECT_EQ(chunk_of(3, 4, 6), (Chunk{6, 0}));
  EXPECT_EQ(chunk_of(1, 2, 5), (Chunk{3, 2}));
  EXPECT_THROW(chunk_of(2, 2, 5), Error);
  EXPECT_THROW(chunk_of(-1, 2, 5), Error);
}

// Magnitudes far apart, so that another order of additions gives other bits. Not inlined: fused
// into the additions of the reference it would give other bits too.
template <typename T>
[[gnu::noinline]] T term(int rank, int64_t i) {
  const T scale = static_cast<T>((rank + i) % 3 == 0 ? 1e7 : 1.0);
  return scale *
         (static_cast<T>(1) / static_cast<T>(3 + rank + 7 * (i % 11)) - static_cast<T>(0.1));
}

class ChunksOf : public testing::TestWithParam<int64_t> {
 protected:
  template <typename T>
  void check_reduce_scatter(Communicator& comm) {
    const int64_t numel = GetParam();
    Tensor values = Tensor::empty(ctx_, {numel}, DTypeOf<T>::value);
    for (int64_t i = 0; i < numel; ++i) values.data<T>()[i] = term<T>(comm.rank(), i);
    comm.reduce_scatter_sum(ctx_, values);
    const Chunk mine = chunk_of(comm.rank(), comm.size(), numel);
    for (int64_t i = 0; i < numel; ++i) {
      const bool own = i >= mine.begin && i < mine.begin + mine.count;
      T expected = own ? term<T>(0, i) : term<T>(comm.rank(), i);
      for (int rank = 1; own && rank < comm.size(); ++rank) expected += term<T>(rank, i);
      ASSERT_EQ(std::memcmp(&expected, values.data<T>() + i, sizeof(T)), 0)
          << "element " << i << ": " << values.data<T>()[i] << ", expected " << expected;
    }
    EXPECT_EQ(ctx_.allocator()->use(Purpose::kWorkspace).current_bytes, 0);
  }
  /// A byte that names its element, its place within it and its owner.
  static std::byte byte_of(int owner, int64_t i) {
    return static_cast<std::byte>((owner * 67 + i * 7 + i / 251 + 1) & 0xff);
  }
  void check_gather(Communicator& comm, DType dtype) {
    const int64_t numel = GetParam();
    const int64_t element = dtype_bytes(dtype);
    Tensor values = Tensor::empty(ctx_, {numel}, dtype);
    auto* const bytes = static_cast<std::byte*>(values.raw_data());
    // What this rank does not own must be overwritten, whatever it is.
    for (int64_t i = 0; i < values.bytes(); ++i) bytes[i] = byte_of(comm.rank(), i);
    comm.all_gather_chunks(ctx_, values);
    for (int owner = 0; owner < comm.size(); ++owner) {
      const Chunk chunk = chunk_of(owner, comm.size(), numel);
      for (int64_t i = chunk.begin * element; i < (chunk.begin + chunk.count) * element; ++i) {
        ASSERT_EQ(bytes[i], byte_of(owner, i)) << dtype_name(dtype) << " byte " << i;
      }
    }
  }
  Context ctx_;
};

TEST_P(ChunksOf, TheOwnOneIsSummedInRankOrderAndTheOthersStay) {
  const auto world = make_mpi_world();
  check_reduce_scatter<float>(*world);
  check_reduce_scatter<double>(*world);
}

TEST_P(ChunksOf, EveryRankEndsWithTheOwnersBytes) {
  const auto world = make_mpi_world();
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
    check_gather(*world, dtype);
  }
}

TEST_P(ChunksOf, WithinAGroupAndInShortMessages) {
  const auto world = make_mpi_world(GetParam() > 200 ? kMaxMessageBytes : 12);
  const auto group = world->split(world->rank() / 2, world->rank());
  check_reduce_scatter<float>(*group);
  check_gather(*group, DType::kBF16);
}

TEST_P(ChunksOf, OneRankAloneKeepsWhatItHas) {
  const auto self = make_self_communicator();
  check_reduce_scatter<float>(*self);
  check_gather(*self, DType::kBF16);
}

TEST_P(ChunksOf, BothHalvesAreTheWholeSum) {
  const auto world = make_mpi_world();
  const int64_t numel = GetParam();
  Tensor whole = Tensor::empty(ctx_, {numel}, DType::kF32);
  for (int64_t i = 0; i < numel; ++i) whole.data<float>()[i] = term<float>(world->rank(), i);
  Tensor halves = whole.clone(ctx_);
  world->all_reduce_sum(ctx_, whole);
  world->reduce_scatter_sum(ctx_, halves);
  world->all_gather_chunks(ctx_, halves);
  EXPECT_TRUE(numel == 0 || std::memcmp(whole.raw_data(), halves.raw_data(),
                                        static_cast<size_t>(whole.bytes())) == 0);
}

// Nothing, fewer elements than ranks, an empty last chunk (6 over 4), unequal chunks, many.
INSTANTIATE_TEST_SUITE_P(Sizes, ChunksOf, testing::Values(0, 1, 2, 3, 5, 6, 130, 65537),
                         [](const auto& test) { return std::to_string(test.param); });

TEST(ReduceScatterErrors, NamesTheDtypeOnEveryRank) {
  const auto world = make_mpi_world();
  Context ctx;
  Tensor values = Tensor::zeros(ctx, {4}, DType::kBF16);
  try {
    world->reduce_scatter_sum(ctx, values);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("reduce_scatter_sum of bf16; allowed: f32, f64"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace spillway::comm
