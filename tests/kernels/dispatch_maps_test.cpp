#include "spillway/kernels/dispatch_maps.h"

#include <algorithm>
#include <map>

#include "spillway/kernels/routing.h"
#include "spillway/kernels/score_bins.h"
#include "support/kernel_test.h"

namespace spillway::kernels {
namespace {

using testing::Guarded;
using testing::tensor_of;
using testing::throws_with;

struct MapsCase {
  const char* name;
  int64_t tokens;
  int64_t top_k;
  DType dtype;
  bool holes;
  bool drops;
  KeepKey key;
};

// Experts 4 to 7 of 12 are here. What is kept is decided one expert at a time from sorted lists of
// (key, ordinal), and every map is filled from those lists.
class DispatchMaps : public ::testing::TestWithParam<MapsCase> {
 protected:
  static constexpr int64_t kExperts = 12, kFirstLocal = 4, kEndLocal = 8;
  static constexpr int64_t kSlotGap = 5;  // padding after each zone

  void SetUp() override {
    const MapsCase& c = GetParam();
    Rng rng(21);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < c.tokens; ++t) {
      std::vector<int32_t> experts(kExperts);
      for (int32_t e = 0; e < kExperts; ++e) experts[static_cast<size_t>(e)] = e;
      for (int64_t k = 0; k < c.top_k; ++k) {
        std::swap(experts[static_cast<size_t>(k)],
                  experts[static_cast<size_t>(k) + rng.below(static_cast<uint64_t>(kExperts - k))]);
        ids.push_back(
            c.holes && (t % 5 == 0 || rng.below(3) == 0) ? -1 : experts[static_cast<size_t>(k)]);
      }
    }
    ids_ = tensor_of<int32_t>(ctx_, {c.tokens, c.top_k}, ids);
    gate_ = testing::random_tensor(ctx_, {c.tokens, c.top_k}, c.dtype, 6);
    decide();
  }

  uint64_t key_of(int64_t expert, int64_t ordinal, int64_t i) const {
    if (GetParam().key == KeepKey::kHash) return hash_chain(state(expert), ordinal_word(ordinal));
    if (GetParam().key == KeepKey::kScore) {
      return score_key(static_cast<float>(testing::element(gate_, i)));
    }
    return ordinal_word(ordinal);
  }
  static uint64_t ordinal_word(int64_t ordinal) { return static_cast<uint64_t>(ordinal); }
  static uint64_t state(int64_t expert) { return 1000 + static_cast<uint64_t>(expert); }

  // kept_[e]: flat indices in token order; experts_: the table that says so.
  void decide() {
    std::vector<std::vector<int64_t>> routed(kExperts);
    for (int64_t i = 0; i < ids_.numel(); ++i) {
      const int32_t id = ids_.data<int32_t>()[i];
      if (id >= 0) routed[static_cast<size_t>(id)].push_back(i);
    }
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::vector<int64_t>& all = routed[static_cast<size_t>(e)];
      std::vector<std::pair<uint64_t, int64_t>> order;  // (key, ordinal)
      for (size_t o = 0; o < all.size(); ++o) {
        const auto ordinal = static_cast<int64_t>(o);
        order.push_back({key_of(e, ordinal, all[o]), ordinal});
      }
      std::sort(order.begin(), order.end());
      // Expert 0 keeps all, 1 nothing, the others two thirds.
      const size_t count = !GetParam().drops || e == 0 ? all.size()
                           : e == 1                    ? 0
                                                       : all.size() * 2 / 3;
      ExpertRows rows{
          .routed = static_cast<int64_t>(all.size()),
          .kept = static_cast<int64_t>(count),
          .local = e >= kFirstLocal && e < kEndLocal,
          .by_key = GetParam().drops && GetParam().key != KeepKey::kOrdinal && count > 0,
          .hash_state = state(e)};
      std::vector<int64_t> kept;
      for (size_t o = 0; o < count; ++o) {
        kept.push_back(all[static_cast<size_t>(order[o].second)]);
      }
      if (count > 0) rows.cut = order[count - 1].first;
      rows.at_cut = static_cast<int64_t>(
          std::count_if(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
                        [&](const auto& entry) { return entry.first == rows.cut; }));
      std::sort(kept.begin(), kept.end());
      kept_.push_back(kept);
      experts_.push_back(rows);
    }
    for (ExpertRows& rows : experts_) {
      int64_t& next = rows.local ? num_local_ : num_sent_;
      rows.first_entry = rows.first_row = next;
      next += rows.kept;
    }
    int64_t slot = 0;
    for (ExpertRows& rows : experts_) {
      if (!rows.local) continue;
      rows.first_row = num_sent_ + slot;
      slot += rows.kept + kSlotGap;
    }
  }

  Context ctx_{Device::kCpu, 2};
  Tensor ids_, gate_;
  std::vector<std::vector<int64_t>> kept_;
  std::vector<ExpertRows> experts_;
  int64_t num_sent_ = 0, num_local_ = 0;
};

std::vector<int64_t> values(const Tensor& x) {
  return {x.span<int32_t>().begin(), x.span<int32_t>().end()};
}

TEST_P(DispatchMaps, HoldWhatIsKeptAndWhereItGoes) {
  Guarded row_of(ctx_, ids_.shape(), DType::kI32), sent(ctx_, {num_sent_}, DType::kI32),
      local(ctx_, {num_local_}, DType::kI32), slot(ctx_, {num_local_}, DType::kI32);
  dispatch_maps(ctx_, {.topk_idx = ids_,
                       .gate = gate_,
                       .experts = experts_,
                       .key = GetParam().key,
                       .row_of = row_of.tensor,
                       .send_assignment = sent.tensor,
                       .local_assignment = local.tensor,
                       .local_slot = slot.tensor});
  std::vector<int64_t> want_row(static_cast<size_t>(ids_.numel()), -1), want_sent, want_local,
      want_slot;
  for (size_t e = 0; e < experts_.size(); ++e) {
    for (size_t o = 0; o < kept_[e].size(); ++o) {
      const int64_t row = experts_[e].first_row + static_cast<int64_t>(o);
      want_row[static_cast<size_t>(kept_[e][o])] = row;
      (experts_[e].local ? want_local : want_sent).push_back(kept_[e][o]);
      if (experts_[e].local) want_slot.push_back(row - num_sent_);
    }
  }
  EXPECT_EQ(values(row_of.tensor), want_row);
  EXPECT_EQ(values(sent.tensor), want_sent);
  EXPECT_EQ(values(local.tensor), want_local);
  EXPECT_EQ(values(slot.tensor), want_slot);
  EXPECT_TRUE(row_of.intact() && sent.intact() && local.intact() && slot.intact());
}

TEST_P(DispatchMaps, SumsOfWhatIsDropped) {
  Tensor row_of = Tensor::empty(ctx_, ids_.shape(), DType::kI32);
  std::fill_n(row_of.data<int32_t>(), row_of.numel(), -1);
  for (const std::vector<int64_t>& kept : kept_) {
    for (const int64_t i : kept) row_of.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  double all = 0.0, dropped = 0.0;
  int64_t fully_dropped = 0;
  for (int64_t t = 0; t < ids_.dim(0); ++t) {
    int64_t had = 0, left = 0;
    for (int64_t i = t * ids_.dim(1); i < (t + 1) * ids_.dim(1); ++i) {
      if (ids_.data<int32_t>()[i] < 0) continue;
      ++had;
      all += testing::element(gate_, i);
      if (row_of.data<int32_t>()[i] >= 0) {
        ++left;
      } else {
        dropped += testing::element(gate_, i);
      }
    }
    fully_dropped += had > 0 && left == 0 ? 1 : 0;
  }
  Guarded sums(ctx_, {3}, DType::kF64);
  dropped_sums(ctx_, {.topk_idx = ids_, .gate = gate_, .row_of = row_of, .sums = sums.tensor});
  constexpr double kSumOrder = 1e-12;  // f64 sums of at most some thousand terms in another order
  EXPECT_TRUE(testing::all_near(sums.tensor, {all, dropped, static_cast<double>(fully_dropped)},
                                kSumOrder, 10.0));
  EXPECT_TRUE(sums.intact());
  const double first = testing::element(sums.tensor, 0);
  dropped_sums(ctx_, {.topk_idx = ids_,
                      .gate = gate_,
                      .row_of = row_of,
                      .any_dropped = false,
                      .sums = sums.tensor});
  EXPECT_EQ(testing::to_doubles(sums.tensor), (std::vector<double>{first, 0.0, 0.0}));
}

INSTANTIATE_TEST_SUITE_P(
    Grid, DispatchMaps,
    ::testing::Values(MapsCase{"no_tokens", 0, 2, DType::kF32, false, false, KeepKey::kOrdinal},
                      MapsCase{"one_token", 1, 1, DType::kF32, false, false, KeepKey::kOrdinal},
                      MapsCase{"all_kept", 257, 4, DType::kF32, false, false, KeepKey::kOrdinal},
                      MapsCase{"all_kept_holes", 257, 4, DType::kF64, true, false, KeepKey::kScore},
                      MapsCase{"one_expert_a_token", 130, 1, DType::kF32, false, true,
                               KeepKey::kOrdinal},
                      MapsCase{"ordinal", 130, 4, DType::kF32, true, true, KeepKey::kOrdinal},
                      MapsCase{"hash", 130, 4, DType::kF32, true, true, KeepKey::kHash},
                      MapsCase{"score_f32", 130, 4, DType::kF32, true, true, KeepKey::kScore},
                      MapsCase{"score_f64", 130, 12, DType::kF64, false, true, KeepKey::kScore}),
    [](const auto& c) { return c.param.name; });

TEST(DispatchMapsByHand, EqualScoresAreKeptInTokenOrder) {
  Context ctx;
  const Tensor ids = tensor_of<int32_t>(ctx, {5, 1}, {0, 0, 0, 0, 0});
  const Tensor gate = tensor_of<float>(ctx, {5, 1}, {0.25F, 0.5F, 0.25F, 0.125F, 0.25F});
  const std::vector<ExpertRows> experts{
      {.routed = 5, .kept = 3, .by_key = true, .cut = score_key(0.25F), .at_cut = 2}};
  Tensor row_of = Tensor::empty(ctx, {5, 1}, DType::kI32);
  Tensor sent = Tensor::empty(ctx, {3}, DType::kI32);
  Tensor none = Tensor::empty(ctx, {0}, DType::kI32), slots = none;
  const auto run = [&](const std::vector<ExpertRows>& table) {
    dispatch_maps(ctx, {.topk_idx = ids,
                        .gate = gate,
                        .experts = table,
                        .key = KeepKey::kScore,
                        .row_of = row_of,
                        .send_assignment = sent,
                        .local_assignment = none,
                        .local_slot = slots});
  };
  run(experts);
  EXPECT_EQ(values(row_of), (std::vector<int64_t>{0, 1, 2, -1, -1}));
  EXPECT_EQ(values(sent), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(throws_with<Error>([&] { run({{.routed = 5, .kept = 2}}); },
                                 {"dispatch_maps", "keep 2 rows to send"}));
  EXPECT_TRUE(throws_with<Error>([&] { run({{.routed = 5, .kept = 6}}); }, {"expert 0 keeps 6"}));
  EXPECT_TRUE(throws_with<Error>([&] { run({{.routed = 5, .kept = 3, .first_entry = 1}}); },
                                 {"first entry of expert 0 is 1"}));
  constexpr int64_t kBeyond = int64_t{1} << 31;
  EXPECT_TRUE(throws_with<Error>([&] { run({{.routed = 5, .kept = 3, .first_row = kBeyond - 3}}); },
                                 {"row_of up to 2147483648", "below 2^31"}));
  run({{.routed = 5, .kept = 3, .first_row = kBeyond - 4}});
  EXPECT_EQ(values(row_of)[0], kBeyond - 4);
}

TEST(CountExperts, OddSizesAndHolesAndRange) {
  Context ctx;
  for (const int64_t tokens : {0, 1, 2, 3, 5, 1023}) {
    std::vector<int32_t> ids;
    std::map<int32_t, int64_t> wanted;
    Rng rng(static_cast<uint64_t>(tokens));
    for (int64_t i = 0; i < 3 * tokens; ++i) {
      ids.push_back(static_cast<int32_t>(rng.below(8)) - 1);
      ++wanted[ids.back()];
    }
    Guarded counts(ctx, {7}, DType::kI64);
    count_experts(ctx, tensor_of<int32_t>(ctx, {tokens, 3}, ids), counts.tensor);
    for (int32_t e = 0; e < 7; ++e) EXPECT_EQ(counts.tensor.data<int64_t>()[e], wanted[e]);
    EXPECT_TRUE(counts.intact());
    if (tokens == 0) continue;
    for (const int32_t bad : {-2, 7}) {
      ids.back() = bad;
      EXPECT_TRUE(throws_with<Error>(
          [&] {
            count_experts(ctx, tensor_of<int32_t>(ctx, {tokens, 3}, ids), counts.tensor);
          },
          {str("expert id ", bad), str("position ", 3 * tokens - 1)}));
    }
  }
}

}  // namespace
}  // namespace spillway::kernels
