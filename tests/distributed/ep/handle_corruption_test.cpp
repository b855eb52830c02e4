// Handles that lie: random bit flips in the header and in the maps, and handles of another time,
// session, call or shape. Every use says so before it communicates; none crashes or goes on.
#include "distributed/ep/fixture.h"

#include <cstring>

namespace spillway::ep::test {
namespace {

constexpr int kHeaderTrials = 10000;
constexpr int kMapTrials = 400;
constexpr uint64_t kMostFlips = 8;
constexpr int kNumUses = 4;
constexpr const char* kUseNames[kNumUses] = {"dispatch", "combine", "combine_backward",
                                             "dispatch_backward"};

// Distinct bits: the bytes are never what they were.
void flip_bits(Rng& rng, unsigned char* bytes, size_t size) {
  std::vector<uint64_t> flipped;
  for (uint64_t flips = 1 + rng.below(kMostFlips); flips > 0; --flips) {
    const uint64_t bit = rng.below(8 * size);
    if (std::find(flipped.begin(), flipped.end(), bit) != flipped.end()) continue;
    flipped.push_back(bit);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
  }
}

class HandleCorruption : public ::testing::Test {
 protected:
  void SetUp() override {
    w_ = std::make_unique<World>(World::size());
    config_ = make_config(World::size(), 2, 8);
    config_.drop_on_overflow = true;
    config_.recv_capacity_per_rank = {tight_capacity(config_), worst_case(config_)};
  }
  void bootstrap(const EpConfig& config) {
    config_ = config;
    w_->session.bootstrap(config_);
    batch_ = make_batch(*w_, config_, Routing::kHotRank);
    prepared_ = w_->session.prepare(batch_.args());
  }

  std::string error_of_use(int use, const RoutingHandle& handle, const Call& call = {}) {
    return error_of_use(w_->session, use, handle, call);
  }
  // Arguments that fit the handle as it was made.
  std::string error_of_use(Session& session, int use, const RoutingHandle& handle,
                           const Call& call = {}) {
    const int64_t capacity = config_.recv_capacity_per_rank[0];
    if (!slots_.defined() || slots_.dim(0) != capacity) {
      slots_ = Tensor::zeros(w_->ctx, {capacity, kHidden}, config_.dtype);
      slot_gates_ = Tensor::zeros(w_->ctx, {capacity}, DType::kF32);
    }
    return error_of([&] {
      if (use == 0) session.dispatch(handle, call, batch_.tokens, batch_.gate);
      if (use == 1) session.combine(handle, call, slots_);
      if (use == 2) session.combine_backward(handle, call, batch_.tokens);
      if (use == 3) session.dispatch_backward(handle, call, slots_, slot_gates_, batch_.gate);
    });
  }
  void expect_error(const RoutingHandle& handle, const std::string& text, const Call& call = {}) {
    for (int use = 0; use < kNumUses; ++use) {
      EXPECT_EQ(error_of_use(use, handle, call), str(kUseNames[use], ": ", text));
    }
  }
  // The bytes of a handle that somebody kept without telling the session, so that it lets them
  // become stale.
  static RoutingHandle forgotten(const RoutingHandle& handle) {
    RoutingHandle copy = handle;
    copy.life = std::make_shared<HandleLife>(std::make_shared<LiveHandles>());
    return copy;
  }
  RoutingHandle with_header(std::function<void(HandleHeader&)> change) const {
    RoutingHandle other = prepared_.handle;
    change(other.header);
    other.header.checksum = header_checksum(other.header);
    return other;
  }

  std::unique_ptr<World> w_;
  EpConfig config_;
  Batch batch_;
  PrepareResult prepared_;
  Tensor slots_, slot_gates_;
};

TEST_F(HandleCorruption, AnyFlippedBitsOfTheHeaderAreAnErrorOfEveryUse) {
  bootstrap(config_);
  const HandleHeader good = prepared_.handle.header;
  RoutingHandle bad = prepared_.handle;
  Rng rng(2024);
  for (int trial = 0; trial < kHeaderTrials; ++trial) {
    unsigned char bytes[sizeof(HandleHeader)];
    std::memcpy(bytes, &good, sizeof(bytes));
    flip_bits(rng, bytes, sizeof(bytes));
    std::memcpy(&bad.header, bytes, sizeof(bytes));
    const int use = trial % kNumUses;
    ASSERT_EQ(error_of_use(use, bad), str(kUseNames[use], ": handle header corrupted"))
        << "trial " << trial;
  }
  bad.header = good;
  for (int use = 0; use < kNumUses; ++use) EXPECT_EQ(error_of_use(use, bad), "");
}

TEST_F(HandleCorruption, EverySingleBitOfTheHeaderCounts) {
  bootstrap(config_);
  RoutingHandle bad = prepared_.handle;
  for (size_t bit = 0; bit < 8 * sizeof(HandleHeader); ++bit) {
    unsigned char bytes[sizeof(HandleHeader)];
    std::memcpy(bytes, &prepared_.handle.header, sizeof(bytes));
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    std::memcpy(&bad.header, bytes, sizeof(bytes));
    const int use = static_cast<int>(bit % kNumUses);
    ASSERT_EQ(error_of_use(use, bad), str(kUseNames[use], ": handle header corrupted"))
        << "bit " << bit;
  }
}

TEST_F(HandleCorruption, DebugModeFindsFlippedBitsOfTheMaps) {
  config_.poison = true;
  config_.renormalize_kept = true;  // the handle then has a copy of the expert ids too
  bootstrap(config_);
  ASSERT_GT(prepared_.ledger.dropped_assignments[0], 0);
  Tensor RoutingHandle::*const maps[] = {
      &RoutingHandle::send_assignment, &RoutingHandle::local_assignment, &RoutingHandle::local_slot,
      &RoutingHandle::row_of, &RoutingHandle::topk_idx};
  std::vector<int64_t> RoutingHandle::*const counts[] = {
      &RoutingHandle::send_counts, &RoutingHandle::recv_counts, &RoutingHandle::token_counts,
      &RoutingHandle::slot_counts, &RoutingHandle::zone_begin};
  Rng rng(31);
  for (int trial = 0; trial < kMapTrials; ++trial) {
    RoutingHandle bad = prepared_.handle;
    unsigned char* bytes = nullptr;
    size_t size = 0;
    if (trial % 2 == 0) {
      Tensor& map = bad.*maps[trial / 2 % std::size(maps)];
      if (!map.defined() || map.numel() == 0) continue;  // this rank sends, or keeps, nothing
      map = map.clone(w_->ctx);
      bytes = static_cast<unsigned char*>(map.raw_data());
      size = static_cast<size_t>(map.bytes());
    } else {
      std::vector<int64_t>& values = bad.*counts[trial / 2 % std::size(counts)];
      bytes = reinterpret_cast<unsigned char*>(values.data());
      size = values.size() * sizeof(int64_t);
    }
    flip_bits(rng, bytes, size);
    const int use = trial / 10 % kNumUses;
    ASSERT_EQ(error_of_use(use, bad), str(kUseNames[use], ": handle maps corrupted"))
        << "trial " << trial;
  }
  for (int use = 0; use < kNumUses; ++use) EXPECT_EQ(error_of_use(use, prepared_.handle), "");
}

TEST_F(HandleCorruption, DebugModeFindsMapsOfAnotherHandle) {
  config_.poison = true;
  bootstrap(config_);
  const PrepareResult other =
      w_->session.prepare(make_batch(*w_, config_, Routing::kUniform, 9).args());
  RoutingHandle mixed = other.handle;
  mixed.header = prepared_.handle.header;
  expect_error(mixed, "handle maps corrupted");
}

// --- stale handles: the field and both values ----------------------------------------------------

TEST_F(HandleCorruption, AfterFinalizeTheHandleIsStale) {
  bootstrap(config_);
  w_->session.finalize();
  expect_error(prepared_.handle, "stale handle: its epoch is 0, the session's is 1");
  w_->session.bootstrap(config_);
  expect_error(prepared_.handle, "stale handle: its epoch is 0, the session's is 1");
  w_->session.finalize();
  w_->session.bootstrap(config_);
  expect_error(prepared_.handle, "stale handle: its epoch is 0, the session's is 2");
}

TEST_F(HandleCorruption, AfterReconfigureInBothModesTheHandleIsStale) {
  bootstrap(config_);
  const RoutingHandle kept = forgotten(prepared_.handle);
  prepared_ = PrepareResult{};
  w_->session.reconfigure(config_, ReconfigureMode::kBuffers);
  expect_error(kept, "stale handle: its epoch is 0, the session's is 1");
  w_->session.reconfigure(config_, ReconfigureMode::kCommunicator);
  expect_error(kept, "stale handle: its epoch is 0, the session's is 2");
}

TEST_F(HandleCorruption, AfterReconfigureToAnotherShapeTheHandleIsStale) {
  bootstrap(config_);
  const RoutingHandle kept = forgotten(prepared_.handle);
  prepared_ = PrepareResult{};
  EpConfig other = config_;
  other.num_experts *= 2;
  other.top_k = 3;
  other.recv_capacity_per_rank = {worst_case(other)};
  w_->session.reconfigure(other, ReconfigureMode::kBuffers);
  expect_error(kept, "stale handle: its epoch is 0, the session's is 1");
}

TEST_F(HandleCorruption, OfAnotherSession) {
  bootstrap(config_);
  Session other(w_->ctx, w_->topology);
  other.bootstrap(config_);
  for (int use = 0; use < kNumUses; ++use) {
    EXPECT_EQ(error_of_use(other, use, prepared_.handle),
              str(kUseNames[use], ": the handle's session_id is ", w_->session.session_id(),
                  ", the session's is ", other.session_id()));
  }
}

TEST_F(HandleCorruption, OfAnotherCall) {
  bootstrap(config_);
  const PrepareArgs args{.call = {.layer = 1, .micro_batch = 3, .step = 70},
                         .topk_idx = batch_.topk_idx,
                         .gate = batch_.gate};
  const RoutingHandle handle = w_->session.prepare(args).handle;
  expect_error(handle, "the handle's layer is 1, the call's is 0", {0, 3, 70});
  expect_error(handle, "the handle's micro_batch is 3, the call's is 4", {1, 4, 70});
  expect_error(handle, "the handle's step is 70, the call's is 71", {1, 3, 71});
  expect_error(handle, "the handle's step is 70, the call's is -1", {1, 3, -1});
}

TEST_F(HandleCorruption, OfAnotherShape) {
  bootstrap(config_);
  const int64_t ep = config_.ep;
  expect_error(with_header([](HandleHeader& h) { h.num_tokens = 15; }),
               "the handle's [num_tokens, top_k] is [15, 2], its map's are [16, 2]");
  expect_error(with_header([](HandleHeader& h) { h.top_k = 3; }),
               "the handle's top_k is 3, the session's is 2");
  expect_error(with_header([](HandleHeader& h) { h.num_experts = 16; }),
               "the handle's num_experts is 16, the session's is 8");
  expect_error(with_header([&](HandleHeader& h) { h.ep = 2 * ep; }),
               str("the handle's ep is ", 2 * ep, ", the session's is ", ep));
  expect_error(with_header([](HandleHeader& h) { h.alignment = 1; }),
               "the handle's alignment is 1, the session's is 8");
  expect_error(with_header([](HandleHeader& h) {
                 h.drop_order = static_cast<int64_t>(plan::DropOrder::kScore);
               }),
               "the handle's drop_order is score, the session's is tail");
}

// Not only in debug mode: the transports would read and write beyond them.
TEST_F(HandleCorruption, PartsOfAnotherLengthAreNamed) {
  bootstrap(config_);
  const RoutingHandle& good = prepared_.handle;
  RoutingHandle bad = good;
  bad.recv_counts.pop_back();
  expect_error(bad, "the handle's number of recv_counts is 7, num_experts and ep give 8");
  const auto longer = [&](const Tensor& map) {
    return Tensor::zeros(w_->ctx, {map.dim(0) + 1}, kIndexType);
  };
  bad = good;
  bad.send_assignment = longer(good.send_assignment);
  const int64_t sent = good.send_assignment.dim(0), local = good.local_slot.dim(0);
  expect_error(bad, str("the handle's send_assignment is [", sent + 1, "], its send_counts give [",
                        sent, "]"));
  bad = good;
  bad.local_slot = longer(good.local_slot);
  expect_error(
      bad, str("the handle's local_slot is [", local + 1, "], its send_counts give [", local, "]"));
}

TEST_F(HandleCorruption, OfTensorsOfAnotherShape) {
  bootstrap(config_);
  const RoutingHandle& handle = prepared_.handle;
  const int64_t capacity = handle.header.capacity;
  const Batch shorter{batch_.topk_idx.rows(0, 5), batch_.gate.rows(0, 5), batch_.tokens.rows(0, 5)};
  const Tensor rows = Tensor::zeros(w_->ctx, {capacity + 8, kHidden}, config_.dtype);
  const Tensor gates = Tensor::zeros(w_->ctx, {capacity + 8}, DType::kF32);
  Session& session = w_->session;
  EXPECT_EQ(error_of([&] { session.dispatch(handle, {}, shorter.tokens, shorter.gate); }),
            "dispatch: the handle's num_tokens is 16, tokens's rows are 5");
  EXPECT_EQ(error_of([&] { session.combine_backward(handle, {}, shorter.tokens); }),
            "combine_backward: the handle's num_tokens is 16, dout's rows are 5");
  EXPECT_EQ(error_of([&] { session.combine(handle, {}, rows); }),
            str("combine: the handle's capacity is ", capacity, ", expert_out's rows are ",
                capacity + 8));
  EXPECT_EQ(error_of([&] { session.dispatch_backward(handle, {}, rows, gates); }),
            str("dispatch_backward: the handle's capacity is ", capacity, ", d_recv's rows are ",
                capacity + 8));
}

}  // namespace
}  // namespace spillway::ep::test
