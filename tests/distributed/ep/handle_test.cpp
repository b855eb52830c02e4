// The routing handle as a value: it may be moved anywhere, and a use that does not fit says why.
#include "distributed/ep/fixture.h"

#include <cstring>

namespace spillway::ep::test {
namespace {

class Handle : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_EP_FITS(GetParam());
    w_ = std::make_unique<World>(GetParam());
    config_ = make_config(GetParam(), 2, 8);
    config_.recv_capacity_per_rank = {worst_case(config_), worst_case(config_) + 8};
    w_->session.bootstrap(config_);
    batch_ = make_batch(*w_, config_, Routing::kUniform);
    prepared_ = w_->session.prepare(batch_.args());
  }
  Session& session() { return w_->session; }
  Tensor slots(int64_t capacity) {
    return Tensor::zeros(w_->ctx, {capacity, kHidden}, config_.dtype);
  }
  std::string combine_error(const RoutingHandle& handle) {
    return error_of([&] { session().combine(handle, {}, slots(handle.header.capacity)); });
  }

  std::unique_ptr<World> w_;
  EpConfig config_;
  Batch batch_;
  PrepareResult prepared_;
};

TEST_P(Handle, SurvivesCopiesMovesAndTheEndOfTheFirst) {
  const DispatchResult sent = session().dispatch(prepared_.handle, {}, batch_.tokens, batch_.gate);
  auto copied = std::make_unique<RoutingHandle>(prepared_.handle);
  RoutingHandle moved = std::move(*copied);
  copied.reset();
  prepared_ = PrepareResult{};
  const Tensor out = session().combine(moved, {}, sent.recv_tokens);
  for (int64_t i = 0; i < out.numel(); ++i)
    ASSERT_EQ(element(out, i), 2 * element(batch_.tokens, i));
}

TEST_P(Handle, IsCountedUntilItsLastCopyIsGone) {
  EXPECT_EQ(session().live_handles(), 1);
  RoutingHandle copy = prepared_.handle;
  EXPECT_EQ(session().live_handles(), 1);
  const PrepareResult second = session().prepare(batch_.args());
  EXPECT_EQ(session().live_handles(), 2);
  prepared_ = PrepareResult{};
  EXPECT_EQ(session().live_handles(), 2);
  copy = RoutingHandle{};
  EXPECT_EQ(session().live_handles(), 1);
}

TEST_P(Handle, DescribesItself) {
  const HandleHeader& header = prepared_.handle.header;
  EXPECT_EQ(header.session_id, session().session_id());
  EXPECT_EQ(header.num_tokens, kTokens);
  EXPECT_EQ(header.top_k, 2);
  EXPECT_EQ(header.num_experts, kExperts);
  EXPECT_EQ(header.ep, GetParam());
  EXPECT_EQ(header.alignment, 8);
  EXPECT_EQ(header.capacity, session().capacity(0));
  EXPECT_EQ(header.maps_checksum, 0u);  // debug mode is off
  EXPECT_EQ(header.checksum, header_checksum(header));
  const int64_t maps = prepared_.handle.send_assignment.bytes() +
                       2 * prepared_.handle.local_slot.bytes() + kTokens * 2 * 8;
  EXPECT_GT(prepared_.handle.bytes(), maps);
}

TEST_P(Handle, NamesAnyFlippedBit) {
  // Seeded: every rank flips the same bits.
  Rng rng(7);
  for (int trial = 0; trial < 600; ++trial) {
    RoutingHandle bad = prepared_.handle;
    unsigned char bytes[sizeof(HandleHeader)];
    std::memcpy(bytes, &bad.header, sizeof(bytes));
    const uint64_t flips = 1 + rng.below(4);
    for (uint64_t flip = 0; flip < flips; ++flip) {
      const uint64_t bit = rng.below(8 * sizeof(bytes));
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    }
    std::memcpy(&bad.header, bytes, sizeof(bytes));
    if (std::memcmp(&bad.header, &prepared_.handle.header, sizeof(bytes)) == 0) continue;
    const Tensor any = slots(8);
    ASSERT_EQ(error_of([&] { session().combine(bad, {}, any); }),
              "combine: handle header corrupted")
        << "trial " << trial;
    ASSERT_EQ(error_of([&] { session().dispatch(bad, {}, batch_.tokens, batch_.gate); }),
              "dispatch: handle header corrupted");
    ASSERT_EQ(error_of([&] { session().combine_backward(bad, {}, batch_.tokens); }),
              "combine_backward: handle header corrupted");
    ASSERT_EQ(error_of([&] { session().dispatch_backward(bad, {}, any, batch_.gate); }),
              "dispatch_backward: handle header corrupted");
  }
}

TEST_P(Handle, NamesTheFieldThatDiffersAndBothValues) {
  struct Change {
    const char* field;
    std::function<void(HandleHeader&)> change;
    std::string text;
  };
  const int64_t ep = GetParam();
  const std::vector<Change> changes{
      {"magic", [](HandleHeader& h) { h.magic = 17; }, "the handle's magic is 17"},
      {"version", [](HandleHeader& h) { h.version = 9; },
       "the handle's version is 9, the session's is 1"},
      {"session_id", [](HandleHeader& h) { h.session_id = 3; },
       str("the handle's session_id is 3, the session's is ", session().session_id())},
      {"epoch", [](HandleHeader& h) { h.epoch = 4; },
       "stale handle: its epoch is 4, the session's is 0"},
      {"layer", [](HandleHeader& h) { h.layer = 2; }, "the handle's layer is 2, the call's is 0"},
      {"micro_batch", [](HandleHeader& h) { h.micro_batch = 7; },
       "the handle's micro_batch is 7, the call's is 0"},
      {"step", [](HandleHeader& h) { h.step = 9; }, "the handle's step is 9, the call's is 0"},
      {"tokens", [](HandleHeader& h) { h.num_tokens = 5; },
       "the handle's [num_tokens, top_k] is [5, 2], its map's are [16, 2]"},
      {"top_k", [](HandleHeader& h) { h.top_k = 3; },
       "the handle's top_k is 3, the session's is 2"},
      {"num_experts", [](HandleHeader& h) { h.num_experts = 64; },
       "the handle's num_experts is 64, the session's is 8"},
      {"ep", [](HandleHeader& h) { h.ep = 32; },
       str("the handle's ep is 32, the session's is ", ep)},
      {"alignment", [](HandleHeader& h) { h.alignment = 128; },
       "the handle's alignment is 128, the session's is 8"},
      {"index_type", [](HandleHeader& h) { h.index_type = static_cast<int64_t>(DType::kI64); },
       "the handle's index_type is i64, the session's is i32"},
      {"drop_order", [](HandleHeader& h) { h.drop_order = 2; },
       "the handle's drop_order is random, the session's is tail"}};
  for (const Change& change : changes) {
    RoutingHandle other = prepared_.handle;
    change.change(other.header);
    other.header.checksum = header_checksum(other.header);
    EXPECT_TRUE(contains(combine_error(other), change.text)) << change.field;
  }
}

TEST_P(Handle, RefusesTensorsOfAnotherLayersCapacity) {
  const PrepareResult other = session().prepare(batch_.args(1));
  const int64_t here = prepared_.handle.header.capacity, there = other.handle.header.capacity;
  EXPECT_TRUE(
      contains(error_of([&] { session().combine(prepared_.handle, {}, slots(there)); }),
               str("combine: the handle's capacity is ", here, ", expert_out's rows are ", there)));
  const Tensor gates = Tensor::zeros(w_->ctx, {there}, DType::kF32);
  EXPECT_TRUE(contains(
      error_of([&] { session().dispatch_backward(prepared_.handle, {}, slots(there), gates); }),
      "d_recv's rows are"));
  EXPECT_TRUE(contains(
      error_of([&] { session().dispatch_backward(prepared_.handle, {}, slots(here), gates); }),
      str("d_gate has shape [", there, "]; allowed: [", here, "]")));
}

TEST_P(Handle, RefusesTokensOfAnotherBatch) {
  const Tensor fewer = batch_.tokens.rows(0, 5);
  EXPECT_TRUE(
      contains(error_of([&] { session().dispatch(prepared_.handle, {}, fewer, batch_.gate); }),
               "dispatch: the handle's num_tokens is 16, tokens's rows are 5"));
  EXPECT_TRUE(contains(error_of([&] { session().combine_backward(prepared_.handle, {}, fewer); }),
                       "dout's rows are 5"));
  EXPECT_TRUE(contains(error_of([&] {
                         session().dispatch(prepared_.handle, {}, batch_.tokens,
                                            batch_.gate.rows(0, 5));
                       }),
                       "gate has shape [5, 2]; allowed: [16, 2]"));
  const Tensor wide = Tensor::zeros(w_->ctx, {kTokens, kHidden + 1}, config_.dtype);
  EXPECT_TRUE(contains(error_of([&] { session().combine_backward(prepared_.handle, {}, wide); }),
                       "rows of 9; allowed: hidden = 8"));
  const Tensor doubles = Tensor::zeros(w_->ctx, {kTokens, kHidden}, DType::kF64);
  EXPECT_TRUE(contains(error_of([&] { session().combine_backward(prepared_.handle, {}, doubles); }),
                       "dout is f64; allowed: the session's f32"));
}

TEST_P(Handle, IsStaleAfterFinalize) {
  session().finalize();
  for (const bool again : {false, true}) {
    if (again) session().bootstrap(config_);
    EXPECT_EQ(combine_error(prepared_.handle),
              "combine: stale handle: its epoch is 0, the session's is 1")
        << (again ? "after the next bootstrap" : "before it");
  }
  EXPECT_EQ(session().prepare(batch_.args()).handle.header.epoch, 1);
}

TEST_P(Handle, OfAnotherSessionIsRefused) {
  Session other(w_->ctx, w_->topology);
  other.bootstrap(config_);
  EXPECT_NE(other.session_id(), session().session_id());
  const std::string text = error_of(
      [&] { other.combine(prepared_.handle, {}, slots(prepared_.handle.header.capacity)); });
  EXPECT_TRUE(contains(text, str("the handle's session_id is ", session().session_id(),
                                 ", the session's is ", other.session_id())));
}

TEST_P(Handle, UndefinedIsRefused) {
  EXPECT_EQ(error_of([&] { session().combine(RoutingHandle{}, {}, slots(8)); }).substr(0, 36),
            "combine: the handle is undefined [ch");
}

TEST_P(Handle, DebugModeChecksTheMaps) {
  session().finalize();
  config_.poison = true;
  session().bootstrap(config_);
  const PrepareResult prepared = session().prepare(batch_.args());
  EXPECT_NE(prepared.handle.header.maps_checksum, 0u);
  EXPECT_EQ(combine_error(prepared.handle), "");
  RoutingHandle bad = prepared.handle;
  bad.row_of = bad.row_of.clone(w_->ctx);
  std::swap(bad.row_of.data<int32_t>()[0], bad.row_of.data<int32_t>()[1]);
  EXPECT_EQ(combine_error(bad), "combine: handle maps corrupted");
  bad = prepared.handle;
  bad.recv_counts[0] += 1;
  EXPECT_EQ(combine_error(bad), "combine: handle maps corrupted");
}

INSTANTIATE_TEST_SUITE_P(Ep, Handle, ::testing::Values(1, 2, 4),
                         [](const auto& test) { return "ep" + std::to_string(test.param); });

}  // namespace
}  // namespace spillway::ep::test
