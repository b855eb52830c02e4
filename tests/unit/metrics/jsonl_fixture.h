#pragma once
// A fresh file for a sink, and one filled record of the larger kinds.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "spillway/metrics/jsonl_sink.h"
#include "support/temp_files.h"

namespace spillway::metrics {

using Json = nlohmann::json;
using Matrix = std::vector<std::vector<int64_t>>;
using Row = std::vector<int64_t>;

class Jsonl : public ::testing::Test {
 protected:
  std::string path() const { return files_.path("metrics.jsonl"); }

  std::vector<std::string> lines() const {
    std::ifstream in(path());
    std::vector<std::string> result;
    for (std::string line; std::getline(in, line);) result.push_back(line);
    return result;
  }

  /// The text of the one line that a fresh sink writes for this record.
  template <class Record>
  std::string line_of(const Record& record) const {
    std::filesystem::remove(path());
    JsonlSink sink(path());
    sink.write(record);
    sink.flush();
    const auto all = lines();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? "null" : all.front();
  }
  template <class Record>
  Json json_of(const Record& record) const {
    return Json::parse(line_of(record));
  }

  spillway::testing::TempFiles files_;
};

inline RunRecord run_record() {
  RunRecord record;
  record.config_json = R"({"run":{"seed":7},"data":{"train":["a"],"shuffle":true}})";
  record.git_commit = "abc123";
  record.world = 8;
  record.ep = 4;
  record.dp = 2;
  record.device = "cpu";
  record.threads = 3;
  record.parameters_total = 5'000'000'000;
  record.parameters_active = 1'000'000'007;
  return record;
}

inline StepRecord step_record() {
  StepRecord record;
  record.step = 17;
  record.loss = 5.25;
  record.aux_loss = 1.0625;
  record.z_loss = 0.1;
  record.grad_norm = 12.5;
  record.lr = 3e-4;
  record.tokens = 16384;
  record.step_ms = 81.75;
  record.tokens_per_s = 200415.9;
  record.tflops = 0.125;
  record.mem_peak_bytes = 9'000'000'000;
  record.mem_peak_by_purpose = {.weights = 1,
                                .gradients = 2,
                                .optimizer = 3,
                                .activations = 5'000'000'000,
                                .receive = 5,
                                .workspace = 6,
                                .data = 7};
  record.saved_bytes = {.routing = 11,
                        .dispatch = 6'000'000'000,
                        .router = 13,
                        .expert_up = 14,
                        .expert_act = 15,
                        .attention = 16};
  return record;
}

inline EpRecord ep_record() {
  EpRecord record;
  record.step = 3;
  record.micro_batch = 1;
  record.layer = 2;
  record.epoch = 4;
  record.capacity = 64;
  record.capacity_end = {64, 96};
  record.total_recv_tokens = {60, 61, 90, 63};
  record.recv_assignments = Row{50, 51, 80, 53};
  record.slot_counts_sum = Row{60, 61, 62, 63};
  record.dropped_assignments = Row{0, 0, 26, 0};
  record.dropped_by_expert = Matrix{{0, 0, 0, 0}, {20, 6, 0, 0}};
  record.dropped_by_source = Row{0, 0, 11, 15};
  record.fully_dropped_tokens = Row{0, 0, 1, 2};
  record.padding_slots = Row{10, 10, 8, 10};
  record.expert_tokens = Matrix{{25, 25, 26, 25}, {40, 40, 26, 27}};
  record.gate_mass = 117.5;
  record.dropped_gate_mass = 3.25;
  record.balanced_slots = 56;
  record.worst_case_slots = 224;
  record.max_over_balanced = 1.6;
  record.headroom = -0.40625;
  record.recv_buffer_bytes = 65536;
  record.capacity_sized_bytes = 4'294'967'296;
  return record;
}

}  // namespace spillway::metrics
