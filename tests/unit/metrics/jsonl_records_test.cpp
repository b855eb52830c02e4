// Every record, field by field, as a reader of the file sees it.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "jsonl_fixture.h"
#include "spillway/core/error.h"

namespace spillway::metrics {
namespace {

TEST_F(Jsonl, Run) {
  RunRecord record = run_record();
  const Json expected = {{"type", "run"},
                         {"config", Json::parse(record.config_json)},
                         {"git_commit", "abc123"},
                         {"world", 8},
                         {"ep", 4},
                         {"dp", 2},
                         {"device", "cpu"},
                         {"threads", 3},
                         {"parameters", {{"total", 5'000'000'000}, {"active", 1'000'000'007}}},
                         {"resumed_from", nullptr}};
  EXPECT_EQ(json_of(record), expected);
  record.resumed_from = 120;
  EXPECT_EQ(json_of(record)["resumed_from"], 120);
}

TEST_F(Jsonl, RunKeepsTheOrderOfTheConfig) {
  RunRecord record = run_record();
  record.config_json = R"({"zebra": 1, "ant": {"z": 1.5, "a": []}})";
  EXPECT_NE(line_of(record).find(R"("config":{"zebra":1,"ant":{"z":1.5,"a":[]}})"),
            std::string::npos);
}

TEST_F(Jsonl, RunRefusesAConfigThatIsNoObject) {
  JsonlSink sink(path());
  for (const char* const text : {"", "{", "[1]", "3", "{\"a\":1} x"}) {
    RunRecord record = run_record();
    record.config_json = text;
    EXPECT_THROW(sink.write(record), Error) << text;
  }
  sink.flush();
  EXPECT_TRUE(lines().empty());
}

TEST_F(Jsonl, Step) {
  StepRecord record = step_record();
  const Json by_purpose = {
      {"weights", 1}, {"gradients", 2}, {"optimizer", 3}, {"activations", 5'000'000'000},
      {"receive", 5}, {"workspace", 6}, {"data", 7}};
  const Json saved = {{"routing", 11},   {"dispatch", 6'000'000'000}, {"router", 13},
                      {"expert_up", 14}, {"expert_act", 15},          {"attention", 16}};
  const Json expected = {{"mem_peak_by_purpose", by_purpose},
                         {"saved_bytes", saved},
                         {"type", "step"},
                         {"step", 17},
                         {"loss", 5.25},
                         {"aux_loss", 1.0625},
                         {"z_loss", 0.1},
                         {"grad_norm", 12.5},
                         {"lr", 3e-4},
                         {"tokens", 16384},
                         {"step_ms", 81.75},
                         {"tokens_per_s", 200415.9},
                         {"tflops", 0.125},
                         {"mfu", nullptr},
                         {"skipped", false},
                         {"mem_peak_bytes", 9'000'000'000}};
  EXPECT_EQ(json_of(record), expected);
  record.mfu = 0.375;
  record.skipped = true;
  EXPECT_EQ(json_of(record)["mfu"], 0.375);
  EXPECT_EQ(json_of(record)["skipped"], true);
}

TEST_F(Jsonl, Ep) {
  const Json expected = {{"type", "ep"},
                         {"step", 3},
                         {"micro_batch", 1},
                         {"layer", 2},
                         {"epoch", 4},
                         {"capacity", 64},
                         {"capacity_end", Row{64, 96}},
                         {"total_recv_tokens", Row{60, 61, 90, 63}},
                         {"recv_assignments", Row{50, 51, 80, 53}},
                         {"slot_counts_sum", Row{60, 61, 62, 63}},
                         {"dropped_assignments", Row{0, 0, 26, 0}},
                         {"dropped_by_expert", Matrix{{0, 0, 0, 0}, {20, 6, 0, 0}}},
                         {"dropped_by_source", Row{0, 0, 11, 15}},
                         {"fully_dropped_tokens", Row{0, 0, 1, 2}},
                         {"padding_slots", Row{10, 10, 8, 10}},
                         {"expert_tokens", Matrix{{25, 25, 26, 25}, {40, 40, 26, 27}}},
                         {"gate_mass", 117.5},
                         {"dropped_gate_mass", 3.25},
                         {"balanced_slots", 56},
                         {"worst_case_slots", 224},
                         {"max_over_balanced", 1.6},
                         {"headroom", -0.40625},
                         {"recv_buffer_bytes", 65536},
                         {"capacity_sized_bytes", 4'294'967'296}};
  EXPECT_EQ(json_of(ep_record()), expected);
}

TEST_F(Jsonl, EpWritesWhatIsNotKnownAsNull) {
  EpRecord record = ep_record();
  record.recv_assignments.reset();
  record.slot_counts_sum.reset();
  record.dropped_assignments.reset();
  record.dropped_by_expert.reset();
  record.dropped_by_source.reset();
  record.fully_dropped_tokens.reset();
  record.padding_slots.reset();
  record.expert_tokens.reset();
  record.gate_mass.reset();
  record.dropped_gate_mass.reset();
  const Json json = json_of(record);
  for (const char* const key :
       {"recv_assignments", "slot_counts_sum", "dropped_assignments", "dropped_by_expert",
        "dropped_by_source", "fully_dropped_tokens", "padding_slots", "expert_tokens", "gate_mass",
        "dropped_gate_mass"}) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  EXPECT_EQ(json.size(), json_of(ep_record()).size());
}

TEST_F(Jsonl, EpWritesEmptyArraysAsArrays) {
  const Json json = json_of(EpRecord{});
  EXPECT_EQ(json["capacity_end"], Json::array());
  EXPECT_EQ(json["total_recv_tokens"], Json::array());
}

TEST_F(Jsonl, EpStep) {
  EpStepRecord record;
  record.step = 9;
  record.layer = 5;
  record.max_total_recv_tokens = 120;
  record.dropped_assignments = 7;
  record.fully_dropped_tokens = 1;
  record.dropped_gate_mass = 0.75;
  record.capacity = 100;
  record.capacity_end = 128;
  record.grow_events = 2;
  Json expected = {{"type", "ep_step"},
                   {"step", 9},
                   {"layer", 5},
                   {"max_total_recv_tokens", 120},
                   {"dropped_assignments", 7},
                   {"fully_dropped_tokens", 1},
                   {"dropped_gate_mass", 0.75},
                   {"capacity", 100},
                   {"capacity_end", 128},
                   {"grow_events", 2}};
  EXPECT_EQ(json_of(record), expected);
  record.dropped_assignments.reset();
  record.fully_dropped_tokens.reset();
  record.dropped_gate_mass.reset();
  expected["dropped_assignments"] = expected["fully_dropped_tokens"] =
      expected["dropped_gate_mass"] = nullptr;
  EXPECT_EQ(json_of(record), expected);
}

TEST_F(Jsonl, Counters) {
  CountersRecord record;
  record.step = 2;
  record.total = {1, 2, 3, 4, 5, 6, 7};
  record.backward = {10, 20, 30, 40, 50, 60, 70};
  const Json backward = {{"prepares", 10},        {"fused_prepares", 20},
                         {"combines", 40},        {"forward_dispatches", 30},
                         {"host_syncs", 60},      {"backward_transports", 50},
                         {"all_to_all_bytes", 70}};
  record.avoided = {100, 200, 300, 400, 500, 600, 700};
  const Json avoided = {{"prepares", 100},        {"fused_prepares", 200},
                        {"combines", 400},        {"forward_dispatches", 300},
                        {"host_syncs", 600},      {"backward_transports", 500},
                        {"all_to_all_bytes", 700}};
  const Json expected = {
      {"type", "counters"},    {"avoided", avoided},       {"step", 2},
      {"prepares", 1},         {"fused_prepares", 2},      {"forward_dispatches", 3},
      {"combines", 4},         {"backward_transports", 5}, {"host_syncs", 6},
      {"all_to_all_bytes", 7}, {"backward", backward}};
  EXPECT_EQ(json_of(record), expected);
}

TEST_F(Jsonl, Reconfigure) {
  ReconfigureRecord record;
  record.step = 40;
  record.epoch = 3;
  record.layer = 1;
  record.kind = ReconfigureKind::kGrow;
  record.group = 1;
  record.micro_batch = 2;
  record.old_capacity = 64;
  record.new_capacity = 80;
  record.reason = "demand 75 slots";
  record.mode = "buffers";
  record.drain_ms = 0.5;
  record.finalize_ms = 0.25;
  record.init_ms = 0.125;
  record.alloc_ms = 2.5;
  const Json expected = {{"type", "reconfigure"},
                         {"step", 40},
                         {"epoch", 3},
                         {"layer", 1},
                         {"kind", "grow"},
                         {"group", 1},
                         {"micro_batch", 2},
                         {"old_capacity", 64},
                         {"new_capacity", 80},
                         {"reason", "demand 75 slots"},
                         {"mode", "buffers"},
                         {"drain_ms", 0.5},
                         {"finalize_ms", 0.25},
                         {"init_ms", 0.125},
                         {"alloc_ms", 2.5}};
  EXPECT_EQ(json_of(record), expected);
}

TEST_F(Jsonl, ReconfigureDefaultsMeanAllLayersAllGroupsBetweenSteps) {
  const Json json = json_of(ReconfigureRecord{});
  EXPECT_EQ(json["layer"], -1);
  EXPECT_EQ(json["group"], -1);
  EXPECT_TRUE(json["micro_batch"].is_null());
  EXPECT_EQ(json["kind"], "policy");
}

TEST_F(Jsonl, ReconfigureKindResume) {
  ReconfigureRecord record;
  record.kind = ReconfigureKind::kResume;
  EXPECT_EQ(json_of(record)["kind"], "resume");
}

TEST_F(Jsonl, Eval) {
  EvalRecord record;
  record.step = 100;
  record.loss = 2.75;
  record.tokens = 4096;
  Json expected = {{"type", "eval"},
                   {"step", 100},
                   {"loss", 2.75},
                   {"tokens", 4096},
                   {"dropped_assignments", nullptr}};
  EXPECT_EQ(json_of(record), expected);
  record.dropped_assignments = 3;
  expected["dropped_assignments"] = 3;
  EXPECT_EQ(json_of(record), expected);
}

TEST_F(Jsonl, Warning) {
  WarningRecord record;
  record.message = "a \"quoted\" word,\na new line and \xc3\xa9";
  Json expected = {{"type", "warning"}, {"step", nullptr}, {"message", record.message}};
  EXPECT_EQ(json_of(record), expected);
  record.step = 1;
  expected["step"] = 1;
  EXPECT_EQ(json_of(record), expected);
}

}  // namespace
}  // namespace spillway::metrics
