// The memory table against what the allocators of a run have counted.

#include "spillway/train/memory_estimate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>

#include "spillway/config/json.h"
#include "spillway/config/validate.h"
#include "spillway/model/decoder.h"
#include "spillway/train/memory_saves.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// What the table promises: 5 %, of each purpose and of the total; 64 KiB where a purpose has less
// than 1 MiB.
constexpr double kTolerance = 0.05;
constexpr int64_t kSmallPurpose = int64_t{1} << 20;
constexpr int64_t kSmallSlack = int64_t{64} << 10;

/// The first step has no receive buffer left over from an earlier one.
constexpr int64_t kSteps = 2;

struct Case {
  const char* name;
  Split split;
  std::vector<std::string> changes;  ///< of configs/demo.json
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Those that the job's ranks can make up.
std::vector<Case> fitting(std::vector<Case> cases) {
  std::erase_if(cases,
                [ranks = world_sizes().back()](const Case& c) { return c.split.world() > ranks; });
  return cases;
}

/// Without AVX-512, products of bf16 work on copies in f32, which are not in the table.
bool copies_bf16() { return __builtin_cpu_supports("avx512bw") == 0; }

void expect_near(const char* what, int64_t estimate, int64_t measured) {
  const double slack = measured < kSmallPurpose ? static_cast<double>(kSmallSlack)
                                                : kTolerance * static_cast<double>(measured);
  EXPECT_NEAR(static_cast<double>(estimate), static_cast<double>(measured), slack) << what;
}

class MemoryTest : public TrainTest, public testing::WithParamInterface<Case> {
 protected:
  config::Config demo(const Split& split, std::vector<std::string> changes) const {
    std::vector<std::string> assignments{str("data.train=[\"", text_path(), "\"]"),
                                         "data.valid=[]",
                                         str("parallel.ep=", split.ep),
                                         str("train.steps=", kSteps),
                                         "capacity={\"policy\":\"worst_case\"}",
                                         "optim.warmup_steps=1"};
    assignments.insert(assignments.end(), changes.begin(), changes.end());
    return config::load(SPILLWAY_SOURCE_DIR "/configs/demo.json", assignments);
  }
};

TEST_P(MemoryTest, IsWhatTheTableSays) {
  const Split& split = GetParam().split;
  auto ranks = first_ranks(split.world());
  if (!ranks) return;
  const config::Config config = demo(split, GetParam().changes);
  TrainRun run(*ranks, config);
  const MemoryEstimate estimate =
      estimate_memory(config, {.world = split.world(), .threads = run.ctx.num_threads()});
  PeakBytes measured{};
  SavedPeaks saved{};
  int64_t total = 0;
  for (const Trainer::StepResult& step : train_steps(run, 1, kSteps)) {
    total = std::max(total, step.record.mem_peak_bytes);
    EXPECT_EQ(step.record.mem_peak_by_purpose.receive,
              step.agreement.peak_by_purpose[static_cast<size_t>(Purpose::kReceive)]);
    for (size_t i = 0; i < measured.size(); ++i) {
      measured[i] = std::max(measured[i], step.agreement.peak_by_purpose[i]);
    }
    for (size_t i = 0; i < saved.size(); ++i) {
      saved[i] = std::max(saved[i], step.agreement.saved_peaks[i]);
    }
  }
  for (size_t i = 0; i < measured.size(); ++i) {
    const auto purpose = static_cast<Purpose>(i);
    const bool unknown = purpose == Purpose::kWorkspace && config.run.dtype == DType::kBF16;
    if (unknown && copies_bf16()) continue;
    expect_near(purpose_name(purpose), estimate.of(purpose), measured[i]);
  }
  expect_near("total", estimate.total, total);
  const bool balanced = config.moe.router.force == moe::ForceRouting::kBalanced;
  for (size_t i = 0; i < saved.size(); ++i) {
    const std::string name(ops::kHeldNames[i]);
    // Routing decides how many rows leave, so how long the maps are, and nothing else.
    if (ops::kHeldNames[i] != ops::kSaveDispatch || balanced) {
      EXPECT_EQ(estimate.saved[i], saved[i]) << name;
    } else {
      expect_near(name.c_str(), estimate.saved[i], saved[i]);
    }
  }
  // Nothing about these depends on what a step does.
  for (const Purpose purpose : {Purpose::kWeights, Purpose::kGradients, Purpose::kOptimizer}) {
    EXPECT_EQ(estimate.of(purpose), measured[static_cast<size_t>(purpose)])
        << purpose_name(purpose);
  }
}

constexpr const char* kBf16 = "run.dtype=bf16";
constexpr const char* kEven =
    R"(capacity={"policy":"factor","factor":{"factor":1.25},"on_overflow":"drop"})";

INSTANTIATE_TEST_SUITE_P(
    Demo, MemoryTest,
    testing::ValuesIn(
        fitting({Case{"ep1_f32", {1, 1}, {}}, Case{"ep1_bf16", {1, 1}, {kBf16}},
                 Case{"ep1_f32_even", {1, 1}, {kEven}}, Case{"ep2_f32", {2, 1}, {}},
                 Case{"ep2_bf16", {2, 1}, {kBf16}}, Case{"ep2_f32_even", {2, 1}, {kEven}},
                 Case{"ep2_bf16_even", {2, 1}, {kBf16, kEven}}, Case{"ep4_f32", {4, 1}, {}},
                 Case{"ep4_bf16", {4, 1}, {kBf16}}, Case{"ep4_f32_even", {4, 1}, {kEven}},
                 Case{"ep4_bf16_even", {4, 1}, {kBf16, kEven}},
                 Case{"ep2_dp2_f32_even", {2, 2}, {kEven}}})),
    [](const auto& test) { return std::string(test.param.name); });

/// Other shapes, smaller than the demo but for what the case is about.
std::vector<std::string> small(std::vector<std::string> changes) {
  std::vector<std::string> all{"model.hidden=64", "model.head_dim=16", "moe.ffn=96",
                               "model.layers=3",  "data.seq=128",      "train.micro_batch=4"};
  all.insert(all.end(), changes.begin(), changes.end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MemoryTest,
    testing::ValuesIn(fitting(
        {Case{"dense", {1, 1}, small({"moe.experts=0", "model.dense_ffn=256"})},
         Case{"dense_bf16_dp2", {1, 2}, small({"moe.experts=0", "model.dense_ffn=256", kBf16})},
         Case{"eight_layers", {2, 1}, small({"model.layers=8"})},
         Case{"tied", {1, 1}, small({"model.tie_embeddings=true"})},
         Case{"tied_dp2", {1, 2}, small({"model.tie_embeddings=true"})},
         Case{"no_qk_norm", {1, 1}, small({"model.qk_norm=none"})},
         Case{"full_qk_norm", {1, 1}, small({"model.qk_norm=full"})},
         Case{"shared_experts",
              {1, 1},
              small({"moe.shared_experts=2", "model.first_dense_layers=1"})},
         Case{"recompute", {2, 1}, small({"recompute.region=layer", kEven})},
         Case{"recompute_dense", {1, 1}, small({"recompute.region=layer", "moe.experts=0"})},
         Case{"recompute_save_dispatch",
              {2, 1},
              small({"recompute={\"region\":\"layer\",\"save\":[\"dispatch\"]}", kEven})},
         Case{"recompute_save_all_bf16",
              {2, 1},
              small({"recompute={\"region\":\"layer\",\"save\":[\"dispatch\",\"router\","
                     "\"expert_up\",\"expert_act\",\"attention\"]}",
                     kBf16, kEven})},
         Case{"recompute_moe",
              {2, 1},
              small({"recompute.region=moe", "model.first_dense_layers=1", kEven})},
         Case{"recompute_moe_save_dispatch_balanced",
              {2, 1},
              small({"recompute={\"region\":\"moe\",\"save\":[\"dispatch\"]}",
                     "moe.router.force=balanced", kEven})},
         Case{"recompute_moe_save_all_shared_bf16",
              {2, 2},
              small({"recompute={\"region\":\"moe\",\"save\":[\"dispatch\",\"router\","
                     "\"expert_up\",\"expert_act\"]}",
                     "moe.shared_experts=1", "moe.router.aux_loss=global", kBf16, kEven})},
         Case{"recompute_layer_save_all_balanced",
              {4, 1},
              small({"recompute={\"region\":\"layer\",\"save\":[\"dispatch\",\"router\","
                     "\"expert_up\",\"expert_act\",\"attention\"]}",
                     "moe.router.force=balanced", "train.grad_accum=2"})},
         Case{"grad_accum", {2, 1}, small({"train.grad_accum=2", kEven})},
         Case{"grad_accum_recompute_bf16",
              {2, 2},
              small({"train.grad_accum=3", "recompute.region=layer", kBf16, kEven})},
         Case{"one_long_sequence", {1, 1}, small({"train.micro_batch=1", "data.seq=256"})},
         Case{"large_vocabulary", {1, 2}, small({"model.vocab_size=20000"})},
         Case{"zero_ep2_dp2", {2, 2}, small({"parallel.zero=1"})},
         Case{"zero_dp4_bf16", {1, 4}, small({"parallel.zero=1", kBf16})},
         Case{"sequence_balance", {1, 1}, small({"moe.router.aux_loss=sequence"})},
         Case{"no_balance_but_bias",
              {2, 1},
              small({"moe.router.aux_loss=none", "moe.router.bias_update_rate=0.01"})}})),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(TrainTest, MemoryOfReceiveBuffersFollowsCapacity) {
  config::Config config = with_split(base_config(), {2, 1}, 2, 1);
  const int64_t expert_out = 32 * 4, row = capacity_sized_row_bytes(config);
  EXPECT_EQ(row, (2 * 32 + 3 * 32) * 4 + 4);
  const int64_t worst = config::layer_facts(config).worst_case_slots;
  const auto receive = [&](bool worst_case) {
    const MemoryEstimate estimate = estimate_memory(config, {.world = 2, .worst_case = worst_case});
    EXPECT_EQ(estimate.of(Purpose::kReceive) % estimate.capacity, 0);
    EXPECT_EQ(estimate.capacity == worst, worst_case || config.capacity.policy == "worst_case");
    return estimate.of(Purpose::kReceive) / estimate.capacity;
  };
  // Both layers hold all but their output. At most is there in the backward of the last activation:
  // that one is gone, its gradient, that of its input and of the gates have come, and a buffer that
  // the gradient of the output was in waits for the next.
  const int64_t activation = 32 * 4, gate = 4;
  const int64_t in_backward = -activation + activation + 2 * activation + gate + expert_out;
  const int64_t two_layers = 2 * (row - expert_out) + in_backward;
  EXPECT_EQ(receive(false), two_layers);
  EXPECT_EQ(receive(true), two_layers);
  config.capacity.policy = "factor";
  config.capacity.on_overflow = capacity::OnOverflow::kDrop;
  EXPECT_EQ(receive(false), two_layers);
  EXPECT_EQ(receive(true), two_layers);
  config.model.layers = 3;
  EXPECT_EQ(receive(false), two_layers + row - expert_out);
}

TEST_F(TrainTest, SavesOfAConfigAreListedWithWhatTheyHoldAndAvoid) {
  config::Config config = with_split(base_config(), {2, 1}, 2, 3);
  const MemoryOptions options{.world = 2};
  const auto none = estimate_saves(config, options);
  config.recompute = {.region = model::RecomputeRegion::kLayer, .save = {"dispatch"}};
  const auto layer = estimate_saves(config, options);
  config.recompute.region = model::RecomputeRegion::kMoe;
  const auto moe = estimate_saves(config, options);
  const MemoryEstimate in_force = estimate_memory(config, options);
  for (size_t i = 0; i < layer.size(); ++i) {
    const bool is_dispatch = layer[i].name == ops::kSaveDispatch;
    EXPECT_EQ(layer[i].name, ops::kHeldNames[i]);
    EXPECT_EQ(none[i].bytes, layer[i].bytes) << layer[i].name;
    EXPECT_EQ(none[i].state, SaveState::kNo);
    EXPECT_EQ(moe[i].bytes, layer[i].name == ops::kSaveAttention ? 0 : layer[i].bytes)
        << layer[i].name;
    EXPECT_EQ(moe[i].state, i == 0        ? SaveState::kAlways
                            : is_dispatch ? SaveState::kYes
                                          : SaveState::kNo);
    EXPECT_EQ(in_force.saved[i], i == 0 || is_dispatch ? moe[i].bytes : 0) << layer[i].name;
  }
  // 2 layers x 3 micro-batches; of 128 assignments a rank half leave, each with its gate.
  const AvoidedByDispatch avoided = avoided_by_dispatch(config);
  EXPECT_EQ(avoided.calls, 6);
  EXPECT_EQ(avoided.all_to_all_bytes, 6 * 64 * (32 * 4 + 4));
  config.moe.router.force = moe::ForceRouting::kBalanced;
  if (world().size() < 2) return;
  auto ranks = first_ranks(2);
  if (!ranks) return;
  TrainRun run(*ranks, config);
  const Trainer::StepResult step = run.trainer.step(1);
  EXPECT_EQ(step.agreement.avoided_all_to_all_bytes, 2 * avoided.all_to_all_bytes);
  EXPECT_EQ(step.record.saved_bytes.dispatch, step.agreement.saved_peaks[1]);
  if (ranks->rank() == 0) {
    EXPECT_EQ(step.counters.avoided.prepares, avoided.calls);
  }
}

TEST_F(TrainTest, MemoryDescriptionNamesEveryRow) {
  const config::Config config = with_split(base_config(), {2, 1}, 2, 1);
  const std::string text = describe_model(config, 4, 1);
  EXPECT_EQ(text.find("world 4 = ep 2 x dp 2\n"), 0U) << text;
  const model::ParameterCounts counts = model::count_parameters(config::decoder_config(config));
  EXPECT_NE(text.find(str("parameters: ", counts.total, " total, ", counts.active, " active")),
            std::string::npos)
      << text;
  for (const char* row :
       {"weights ",         "gradients ",  "optimizer ",      "activations ",
        "receive buffers ", "workspace ",  "data ",           "total ",
        "first step",       "worst case",  "capacity, slots", "Not in it: ",
        "named saves: ",    "routing ",    "dispatch ",       "router ",
        "expert_up ",       "expert_act ", "attention ",      "recompute.region is \"none\""}) {
    EXPECT_NE(text.find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace spillway::train
