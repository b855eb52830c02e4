// The world message of a step: rank order, what is summed and what is a maximum.
#include "spillway/train/step_report.h"

#include <cmath>
#include <limits>

#include "support/train_fixture.h"

namespace spillway::train {
namespace {

/// Powers of ten by rank: a sum names the ranks that it holds, and how often.
double by_rank(int rank) { return std::pow(10.0, rank); }

class StepReportTest : public TrainTest {
 protected:
  RankReport mine() const {
    RankReport report;
    report.norm_squares = by_rank(rank());
    report.loss_sum = 2.0 * by_rank(rank());
    report.aux_loss = 3.0 * by_rank(rank());
    report.z_loss = 4.0 * by_rank(rank());
    report.mem_peak_bytes = 1000 - rank();
    // One purpose is highest on the first rank, another on the last.
    report.peak_by_purpose[0] = 100 - rank();
    report.peak_by_purpose[kNumPurposes - 1] = 200 + rank();
    report.saved_peaks.front() = 300 - rank();
    report.saved_peaks.back() = 400 + rank();
    report.dropped_assignments = 5 * static_cast<int64_t>(by_rank(rank()));
    report.counters.all_to_all_bytes = 7 * static_cast<int64_t>(by_rank(rank()));
    report.backward_counters.all_to_all_bytes = static_cast<int64_t>(by_rank(rank()));
    report.avoided_counters.all_to_all_bytes = 3 * static_cast<int64_t>(by_rank(rank()));
    report.counters.combines = 6;
    return report;
  }
  int rank() const { return const_cast<StepReportTest*>(this)->world().rank(); }
  double ones() {
    double total = 0.0;
    for (int r = 0; r < world().size(); ++r) total += by_rank(r);
    return total;
  }
  static moe::LayerRecord layer(int64_t index, std::vector<int64_t> demand, int64_t capacity_end) {
    moe::LayerRecord record{.moe_layer = index, .micro_batch = 1};
    record.ledger.total_recv_tokens = std::move(demand);
    record.ledger.capacity_end = capacity_end;
    return record;
  }
};

TEST_F(StepReportTest, SumsAndMaximaAreTheSameEverywhere) {
  const StepAgreement all = exchange_reports(world(), mine(), 0).agreement;
  EXPECT_EQ(all.grad_norm, std::sqrt(ones()));
  EXPECT_EQ(all.loss_sum, 2.0 * ones());
  EXPECT_EQ(all.aux_loss, 3.0 * ones());
  EXPECT_EQ(all.z_loss, 4.0 * ones());
  EXPECT_EQ(all.mem_peak_bytes, 1000);
  EXPECT_EQ(all.peak_by_purpose.front(), 100);
  EXPECT_EQ(all.peak_by_purpose.back(), 200 + world().size() - 1);
  EXPECT_EQ(all.dropped_assignments, 5 * static_cast<int64_t>(ones()));
  EXPECT_EQ(all.all_to_all_bytes, 7 * static_cast<int64_t>(ones()));
  EXPECT_EQ(all.backward_all_to_all_bytes, static_cast<int64_t>(ones()));
  EXPECT_EQ(all.avoided_all_to_all_bytes, 3 * static_cast<int64_t>(ones()));
  EXPECT_EQ(all.saved_peaks.front(), 300);
  EXPECT_EQ(all.saved_peaks[1], 0);
  EXPECT_EQ(all.saved_peaks.back(), 400 + world().size() - 1);
  EXPECT_EQ(all.finite, 1);
  EXPECT_EQ(all.skip, 0);
  EXPECT_EQ(all.stop, 0);
  EXPECT_EQ(all.checkpoint, 0);
  EXPECT_EQ(all.counters_differ_on, -1);
}

TEST_F(StepReportTest, RootHasAllReportsInRankOrder) {
  const StepMessage message = exchange_reports(world(), mine(), 0);
  if (!is_root()) {
    EXPECT_TRUE(message.reports.empty());
    return;
  }
  ASSERT_EQ(message.reports.size(), static_cast<size_t>(world().size()));
  for (int r = 0; r < world().size(); ++r) {
    const RankReport& report = message.reports[static_cast<size_t>(r)];
    EXPECT_EQ(report.loss_sum, 2.0 * by_rank(r));
    EXPECT_EQ(report.mem_peak_bytes, 1000 - r);
    EXPECT_EQ(report.counters.combines, 6);
  }
}

TEST_F(StepReportTest, LedgerComesThroughWhole) {
  RankReport report = mine();
  moe::LayerRecord record = layer(0, {10 + rank(), 20}, 64);
  ep::Ledger& ledger = record.ledger;
  ledger.recv_assignments = {1, 2};
  ledger.slot_counts_sum = {3, 4};
  ledger.padding_slots = {5, 6};
  ledger.dropped_assignments = {7, 8};
  ledger.dropped_by_source = {9, 10};
  ledger.dropped_by_expert = {11, 12, 13, 14};
  ledger.expert_tokens = {15, 16, 17, 18};
  ledger.group_tokens = 19;
  ledger.fully_dropped_tokens = 20 + rank();
  ledger.gate_mass = 0.1;
  ledger.dropped_gate_mass = 0.025;
  ledger.capacity_begin = 56;
  ledger.recv_buffer_bytes = 21;
  ledger.grow_alloc_ms = 2.25;
  report.layers = {record};
  const StepMessage message = exchange_reports(world(), report, 1);
  if (!is_root()) return;
  for (int r = 0; r < world().size(); ++r) {
    const std::vector<moe::LayerRecord>& layers = message.reports[static_cast<size_t>(r)].layers;
    ASSERT_EQ(layers.size(), 1U);
    EXPECT_EQ(layers[0].micro_batch, 1);
    const ep::Ledger& got = layers[0].ledger;
    EXPECT_EQ(got.total_recv_tokens, (std::vector<int64_t>{10 + r, 20}));
    EXPECT_EQ(got.recv_assignments, ledger.recv_assignments);
    EXPECT_EQ(got.slot_counts_sum, ledger.slot_counts_sum);
    EXPECT_EQ(got.padding_slots, ledger.padding_slots);
    EXPECT_EQ(got.dropped_assignments, ledger.dropped_assignments);
    EXPECT_EQ(got.dropped_by_source, ledger.dropped_by_source);
    EXPECT_EQ(got.dropped_by_expert, ledger.dropped_by_expert);
    EXPECT_EQ(got.expert_tokens, ledger.expert_tokens);
    EXPECT_EQ(got.group_tokens, 19);
    EXPECT_EQ(got.fully_dropped_tokens, 20 + r);
    EXPECT_EQ(got.gate_mass, 0.1);
    EXPECT_EQ(got.dropped_gate_mass, 0.025);
    EXPECT_EQ(got.capacity_begin, 56);
    EXPECT_EQ(got.capacity_end, 64);
    EXPECT_EQ(got.recv_buffer_bytes, 21);
    EXPECT_EQ(got.grow_alloc_ms, 2.25);
  }
}

TEST_F(StepReportTest, DemandAndCapacityAreMaximaOfEachLayer) {
  RankReport report = mine();
  // Two micro-batches of layer 0, one of layer 1; the last rank has the most of layer 1.
  report.layers = {layer(0, {100, 3}, 128), layer(1, {7 + rank(), 1}, 16 + rank()),
                   layer(0, {50, 200 - rank()}, 136)};
  const StepAgreement all = exchange_reports(world(), report, 2).agreement;
  EXPECT_EQ(all.demand, (std::vector<int64_t>{200, 7 + world().size() - 1}));
  EXPECT_EQ(all.capacity_end, (std::vector<int64_t>{136, 16 + world().size() - 1}));
}

TEST_F(StepReportTest, ExpertCountsAreAddedOnceAGroupAndMicroBatch) {
  // Groups of `ep` ranks, all of whom know the counts of their group.
  for (int ep = 1; ep <= world().size(); ep *= 2) {
    RankReport report = mine();
    const auto group = static_cast<int64_t>(by_rank(rank() / ep));
    for (const int64_t index : {0, 1, 0}) {
      moe::LayerRecord record = layer(index, std::vector<int64_t>(static_cast<size_t>(ep), 8), 8);
      record.ledger.expert_tokens = {group, 3 * group, 0, index};
      report.layers.push_back(record);
    }
    const StepAgreement all = exchange_reports(world(), report, 3).agreement;
    int64_t groups = 0, ones_of_groups = 0;
    for (int r = 0; r < world().size(); r += ep, ++groups) {
      ones_of_groups += static_cast<int64_t>(by_rank(r / ep));
    }
    ASSERT_EQ(all.expert_counts.size(), 3U) << "ep " << ep;
    EXPECT_EQ(all.expert_counts[0],
              (std::vector<int64_t>{2 * ones_of_groups, 6 * ones_of_groups, 0, 0}));
    EXPECT_EQ(all.expert_counts[1],
              (std::vector<int64_t>{ones_of_groups, 3 * ones_of_groups, 0, groups}));
    EXPECT_TRUE(all.expert_counts[2].empty()) << "a layer without a report";
  }
}

struct FlagCase {
  const char* name;
  int64_t RankReport::*report;
  int64_t StepAgreement::*agreement;
};

class FlagTest : public StepReportTest, public testing::WithParamInterface<FlagCase> {};

TEST_P(FlagTest, OneRankIsEnough) {
  const FlagCase& flag = GetParam();
  for (int who = 0; who < world().size(); ++who) {
    RankReport report = mine();
    if (rank() == who) report.*flag.report = 1;
    const StepAgreement all = exchange_reports(world(), report, 0).agreement;
    EXPECT_EQ(all.*flag.agreement, 1) << "rank " << who;
    EXPECT_EQ(all.skip + all.stop + all.checkpoint, 1) << "only that flag";
    EXPECT_EQ(all.finite, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Flags, FlagTest,
                         testing::Values(FlagCase{"skip", &RankReport::skip, &StepAgreement::skip},
                                         FlagCase{"stop", &RankReport::stop, &StepAgreement::stop},
                                         FlagCase{"checkpoint", &RankReport::checkpoint,
                                                  &StepAgreement::checkpoint}),
                         [](const auto& test) { return std::string(test.param.name); });

struct NonFiniteCase {
  const char* name;
  void (*spoil)(RankReport& report);
};

class NonFiniteTest : public StepReportTest, public testing::WithParamInterface<NonFiniteCase> {};

TEST_P(NonFiniteTest, IsSeenByAllRanks) {
  for (int who = 0; who < world().size(); ++who) {
    RankReport report = mine();
    if (rank() == who) GetParam().spoil(report);
    EXPECT_EQ(exchange_reports(world(), report, 0).agreement.finite, 0) << "rank " << who;
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
INSTANTIATE_TEST_SUITE_P(
    Kinds, NonFiniteTest,
    testing::Values(NonFiniteCase{"flag", [](RankReport& r) { r.finite = 0; }},
                    NonFiniteCase{"nan_loss", [](RankReport& r) { r.loss_sum = std::nan(""); }},
                    NonFiniteCase{"infinite_loss", [](RankReport& r) { r.loss_sum = -kInfinity; }},
                    NonFiniteCase{"nan_norm", [](RankReport& r) { r.norm_squares = std::nan(""); }},
                    NonFiniteCase{"infinite_norm",
                                  [](RankReport& r) { r.norm_squares = kInfinity; }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(StepReportTest, CountersThatDifferNameTheRank) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const int last = world().size() - 1;
  for (CounterSet RankReport::*const set :
       {&RankReport::counters, &RankReport::backward_counters, &RankReport::avoided_counters}) {
    RankReport report = mine();
    if (rank() == last) ++(report.*set).forward_dispatches;
    EXPECT_EQ(exchange_reports(world(), report, 0).agreement.counters_differ_on, last);
  }
}

TEST_F(StepReportTest, HostSyncsAndBytesMayDiffer) {
  RankReport report = mine();
  report.counters.host_syncs = rank();
  report.counters.all_to_all_bytes = rank();
  report.avoided_counters.host_syncs = rank();
  report.avoided_counters.all_to_all_bytes = rank();
  EXPECT_EQ(exchange_reports(world(), report, 0).agreement.counters_differ_on, -1);
}

}  // namespace
}  // namespace spillway::train
