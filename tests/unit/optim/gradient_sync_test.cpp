// Which slices GradientSync sums, when, and over which group: seen by a communicator that records
// and moves nothing. The sums themselves: tests/distributed/optim.

#include "spillway/optim/gradient_sync.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "small_model.h"

namespace spillway::optim {
namespace {

struct Call {
  std::string group;
  int64_t begin = 0;
  int64_t elements = 0;
  friend bool operator==(const Call&, const Call&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Call& call) {
    return out << call.group << "[" << call.begin << " +" << call.elements << "]";
  }
};

/// Rank 0 of `size` ranks, of which there is only this one. A sum doubles the values.
class RecordingCommunicator final : public comm::Communicator {
 public:
  RecordingCommunicator(std::string group, int size, int ep, std::vector<Call>& calls)
      : group_(std::move(group)), size_(size), ep_(ep), calls_(calls) {}
  void bind(nn::ParameterStore& store) { *store_ = &store; }

  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::string name() const override { return group_; }
  void all_reduce_sum(Context&, Tensor& values) override { record(values, group_); }
  void reduce_scatter_sum(Context&, Tensor& values) override { record(values, group_ + " shards"); }
  void record(Tensor& values, const std::string& name) {
    const bool dense = group_ == "world";
    Tensor& flat = (*store_)->flat_gradient(dense ? nn::SyncGroup::kDense : nn::SyncGroup::kExpert);
    ASSERT_TRUE(values.shares_storage(flat)) << group_;
    visit_float(values.dtype(), [&]<typename T>() {
      calls_.push_back({name, values.data<T>() - flat.data<T>(), values.numel()});
      for (T& value : values.span<T>()) value = T(static_cast<acc_t<T>>(value) * 2);
    });
  }
  std::unique_ptr<Communicator> split(int, int) override {
    // A topology asks for its EP group first and for its dp group then.
    const bool first = num_splits_++ == 0;
    auto part = std::make_unique<RecordingCommunicator>(first ? "ep" : "dp",
                                                        first ? ep_ : size_ / ep_, ep_, calls_);
    part->store_ = store_;
    return part;
  }
  void all_gather(const void*, void*, int64_t) override { FAIL(); }
  std::vector<std::vector<std::byte>> gather_to_root(std::span<const std::byte>) override {
    return {};
  }
  void broadcast_from_root(std::vector<std::byte>&) override {}
  void exchange(std::span<const comm::Segment>, std::span<const comm::Segment>) override {}
  void barrier() override {}

 private:
  std::string group_;
  int size_;
  int ep_;
  std::vector<Call>& calls_;
  int num_splits_ = 0;
  std::shared_ptr<nn::ParameterStore*> store_ = std::make_shared<nn::ParameterStore*>(nullptr);
};

/// The small model at ep = 2: dense embed 0..42, norm 48..54, router 64..88, head 96..138;
/// experts up 0..120, down 128..188.
struct FakeRanks {
  explicit FakeRanks(int64_t bucket_bytes, int world_size = 4, int ep = 2,
                     DType dtype = DType::kF32)
      : world("world", world_size, ep, calls),
        store(ctx, small_model(dtype), kModelSeed, ep, 0),
        topology(world, ep),
        sync(store, topology, bucket_bytes) {
    world.bind(store);
  }
  void ready(const char* name) { sync.on_leaf_ready(ctx, name); }

  Context ctx;
  std::vector<Call> calls;
  RecordingCommunicator world;
  nn::ParameterStore store;
  comm::Topology topology;
  GradientSync sync;
};

constexpr int64_t kOneBucketEach = 1;
// embed and norm together (54 elements), router and head together (74): 4 * 80 bytes hold either.
constexpr int64_t kTwoDenseBuckets = 320;

class BucketSize : public testing::TestWithParam<int64_t> {};

TEST_P(BucketSize, EveryParameterIsInOneBucketOfItsGroup) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    FakeRanks s(GetParam(), 4, 2, dtype);
    const int64_t element_bytes = dtype_bytes(accumulator_dtype(dtype));
    int64_t num_parameters = 0;
    for (const Bucket& bucket : s.sync.layout().buckets) {
      num_parameters += bucket.num_parameters;
      const bool small = bucket.elements * element_bytes <= GetParam();
      EXPECT_TRUE(small || bucket.num_parameters == 1) << bucket.begin;
    }
    EXPECT_EQ(num_parameters, 6);
    for (const nn::Parameter& p : s.store.all()) {
      int found = 0;
      for (const Bucket& bucket : s.sync.layout().buckets) {
        found += bucket.group == p.spec.sync && bucket.begin <= p.gradient_offset &&
                 p.gradient_offset + p.gradient.numel() <= bucket.begin + bucket.elements;
      }
      EXPECT_EQ(found, 1) << p.spec.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bytes, BucketSize,
                         testing::Values(1, 215, 216, kTwoDenseBuckets, 1000, kDefaultBucketBytes),
                         [](const auto& test) { return std::to_string(test.param); });

TEST(GradientSync, BucketsFillUpInParameterOrder) {
  FakeRanks s(kTwoDenseBuckets);
  s.sync.finish(s.ctx);
  EXPECT_EQ(s.calls, (std::vector<Call>{
                         {"world", 0, 54}, {"world", 64, 74}, {"dp", 0, 120}, {"dp", 128, 60}}));
}

TEST(GradientSync, ABucketSizeHoldsExactlyWhatFits) {
  FakeRanks fits(216);  // embed, its gap and norm: 54 elements of 4 bytes
  EXPECT_EQ(fits.sync.layout().buckets.front().elements, 54);
  FakeRanks too_small(215);
  EXPECT_EQ(too_small.sync.layout().buckets.front().elements, 42);
}

TEST(GradientSync, TheDefaultHoldsASmallModelInOneBucketAGroup) {
  FakeRanks s(kDefaultBucketBytes);
  s.sync.finish(s.ctx);
  EXPECT_EQ(s.calls, (std::vector<Call>{{"world", 0, 138}, {"dp", 0, 188}}));
}

TEST(GradientSync, ABucketIsSummedWhenItsLastParameterIsReady) {
  FakeRanks s(kTwoDenseBuckets);
  s.sync.begin_last_micro_batch();
  s.ready("head");
  s.ready("norm");
  EXPECT_TRUE(s.calls.empty());
  s.ready("router");
  EXPECT_EQ(s.calls, (std::vector<Call>{{"world", 64, 74}}));
  s.ready("down");
  s.ready("embed");
  EXPECT_EQ(s.calls, (std::vector<Call>{{"world", 64, 74}, {"dp", 128, 60}, {"world", 0, 54}}));
}

TEST(GradientSync, FinishSumsOnlyWhatIsLeft) {
  FakeRanks s(kTwoDenseBuckets);
  fill_gradients(s.store, 0, [](int64_t, int64_t) { return 1.0F; });
  s.sync.begin_last_micro_batch();
  s.ready("embed");
  s.ready("norm");
  s.ready("up");
  s.ready("router");  // head has no use in this pass
  s.sync.finish(s.ctx);
  EXPECT_EQ(s.calls, (std::vector<Call>{
                         {"world", 0, 54}, {"dp", 0, 120}, {"world", 64, 74}, {"dp", 128, 60}}));
  for_each_element(s.store, 0, [](nn::Parameter& p, int64_t, int64_t i, int64_t) {
    ASSERT_EQ(p.gradient.data<float>()[i], 2.0F) << p.spec.name;
  });
}

TEST(GradientSync, EarlierMicroBatchesSumNothing) {
  FakeRanks s(kOneBucketEach);
  for (const char* name : {"head", "down", "router", "up", "norm", "embed"}) s.ready(name);
  EXPECT_TRUE(s.calls.empty());
  s.sync.begin_last_micro_batch();
  s.ready("head");
  EXPECT_EQ(s.calls.size(), 1U);
  s.sync.finish(s.ctx);
  EXPECT_EQ(s.calls.size(), 6U);
}

TEST(GradientSync, EveryStepStartsAnew) {
  FakeRanks s(kTwoDenseBuckets);
  for (size_t step = 1; step <= 3; ++step) {
    s.ready("router");  // of an earlier micro-batch
    s.sync.begin_last_micro_batch();
    s.ready("embed");
    s.ready("norm");
    s.sync.finish(s.ctx);
    ASSERT_EQ(s.calls.size(), 4 * step);
  }
}

TEST(GradientSync, AStepThatAnErrorEndedLeavesNothingBehind) {
  FakeRanks s(kTwoDenseBuckets);
  s.sync.begin_last_micro_batch();
  s.ready("embed");
  s.ready("router");
  s.ready("head");
  s.calls.clear();
  s.sync.begin_last_micro_batch();
  s.ready("norm");
  EXPECT_TRUE(s.calls.empty());
  s.ready("embed");
  s.sync.finish(s.ctx);
  EXPECT_EQ(s.calls.size(), 4U);
}

TEST(GradientSync, ReadyTwiceIsAnErrorThatNamesTheParameter) {
  FakeRanks s(kTwoDenseBuckets);
  s.sync.begin_last_micro_batch();
  s.ready("router");
  try {
    s.ready("router");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("router"), std::string::npos) << error.what();
  }
}

TEST(GradientSync, LeavesThatAreNoParametersDoNotMatter) {
  FakeRanks s(kOneBucketEach);
  s.sync.begin_last_micro_batch();
  s.ready("input");
  EXPECT_TRUE(s.calls.empty());
}

TEST(GradientSync, AGroupOfOneSumsNothing) {
  FakeRanks alone(kTwoDenseBuckets, 1, 1);
  alone.sync.finish(alone.ctx);
  EXPECT_TRUE(alone.calls.empty());

  FakeRanks one_replica(kTwoDenseBuckets, 2, 2);
  one_replica.sync.finish(one_replica.ctx);
  EXPECT_EQ(one_replica.calls, (std::vector<Call>{{"world", 0, 54}, {"world", 64, 74}}));
}

TEST(GradientSync, AShardedLayoutSumsShardsOfTheSameBuckets) {
  FakeRanks s(kTwoDenseBuckets);
  GradientSync sharded(s.store, s.topology,
                       make_bucket_layout(s.store, s.topology, true, kTwoDenseBuckets));
  sharded.begin_last_micro_batch();
  for (const char* name : {"head", "router", "down"}) sharded.on_leaf_ready(s.ctx, name);
  sharded.finish(s.ctx);
  EXPECT_EQ(s.calls, (std::vector<Call>{{"world shards", 64, 74},
                                        {"dp shards", 128, 60},
                                        {"world shards", 0, 54},
                                        {"dp shards", 0, 120}}));
}

TEST(GradientSync, ALayoutOfAnotherStoreIsRefused) {
  FakeRanks s(kTwoDenseBuckets);
  BucketLayout layout = s.sync.layout();
  layout.bucket_of.pop_back();
  EXPECT_THROW(GradientSync(s.store, s.topology, layout), Error);
}

TEST(BucketLayout, AWholeOneOwnsAllAShardedOneItsChunk) {
  FakeRanks s(kTwoDenseBuckets);  // rank 0 of a world of 4, dp 2
  for (const Bucket& bucket : s.sync.layout().buckets) {
    EXPECT_EQ(bucket.own, (comm::Chunk{bucket.begin, bucket.elements}));
  }
  const BucketLayout sharded = make_bucket_layout(s.store, s.topology, true, kTwoDenseBuckets);
  ASSERT_EQ(sharded.buckets.size(), 4U);
  EXPECT_EQ(sharded.bucket_of, s.sync.layout().bucket_of);
  EXPECT_EQ(sharded.buckets[0].own, (comm::Chunk{0, 14}));    // of 54 over 4
  EXPECT_EQ(sharded.buckets[1].own, (comm::Chunk{64, 19}));   // of 74 over 4
  EXPECT_EQ(sharded.buckets[2].own, (comm::Chunk{0, 60}));    // of 120 over 2
  EXPECT_EQ(sharded.buckets[3].own, (comm::Chunk{128, 30}));  // of 60 over 2
}

TEST(GradientSync, BucketsOfNoBytesAreRefused) {
  EXPECT_THROW(FakeRanks(0), Error);
  EXPECT_THROW(FakeRanks(-4), Error);
}

/// A number that depends on `before` and on `parameter`, with gradient 1 for each element of the
/// latter. The parameter's name goes into `calls` when the op is walked.
autograd::Variable use(FakeRanks& s, autograd::Tape& tape, const char* parameter,
                       const autograd::Variable& before) {
  return tape.record("use", Tensor::zeros(s.ctx, {1}, DType::kF32),
                     {s.store.at(parameter).variable, before},
                     [&s, parameter](autograd::Backward& b) {
                       s.calls.push_back({parameter});
                       for (float& g : b.accumulator(0).span<float>()) g += 1.0F;
                       b.give(1, Tensor::zeros(b.ctx(), {1}, DType::kF32));
                     });
}

TEST(GradientSync, OnATapeSumsBetweenTheOpsOfTheLastBackward) {
  FakeRanks s(kOneBucketEach);
  autograd::Tape tape(s.ctx);
  s.sync.attach(tape);
  for (const bool last : {false, true}) {
    if (last) s.sync.begin_last_micro_batch();
    s.calls.clear();
    // The embedding is used twice (tied with the head): it is ready after its first use only.
    autograd::Variable x(Tensor::zeros(s.ctx, {1}, DType::kF32));
    for (const char* name : {"embed", "up", "router", "embed"}) x = use(s, tape, name, x);
    tape.backward(x, Tensor::zeros(s.ctx, {1}, DType::kF32));
    if (!last) {
      EXPECT_EQ(s.calls, (std::vector<Call>{{"embed"}, {"router"}, {"up"}, {"embed"}}));
    }
  }
  EXPECT_EQ(s.calls, (std::vector<Call>{{"embed"},
                                        {"router"},
                                        {"world", 64, 24},
                                        {"up"},
                                        {"dp", 0, 120},
                                        {"embed"},
                                        {"world", 0, 42}}));
  // Two micro-batches, then one sum over two equal ranks.
  EXPECT_EQ(s.store.at("embed").gradient.data<float>()[41], 2.0F * 4.0F);
  EXPECT_EQ(s.store.at("router").gradient.data<float>()[0], 2.0F * 2.0F);
  EXPECT_EQ(s.store.at("head").gradient.data<float>()[0], 0.0F);
}

}  // namespace
}  // namespace spillway::optim
