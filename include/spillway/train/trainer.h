#pragma once
// The step loop. One object a process; all public calls are collectives of the world.

#include <memory>
#include <string>
#include <vector>

#include "spillway/config/config.h"
#include "spillway/data/batches.h"
#include "spillway/metrics/jsonl_sink.h"
#include "spillway/model/decoder.h"
#include "spillway/optim/adamw.h"
#include "spillway/optim/gradient_sync.h"
#include "spillway/train/capacity_manager.h"
#include "spillway/train/run_summary.h"
#include "spillway/train/signals.h"

namespace spillway::train {

class Trainer {
 public:
  /// Builds model, optimizer, data and EP session. The config must be valid for the world. Keeps
  /// references; all must outlive it.
  Trainer(Context& ctx, comm::Communicator& world, const config::Config& config,
          SignalGate& signals);

  /// Trains to the last step (or a stop signal), evaluating as configured. Metrics go to the run
  /// directory, which must exist.
  void run();

  /// One optimizer step (1-based): forward, backward, agreement, update, capacity. What rank 0
  /// knows is complete; other ranks see the agreement.
  struct StepResult {
    StepAgreement agreement;
    metrics::StepRecord record;
    std::vector<metrics::EpRecord> ep;
    std::vector<metrics::EpStepRecord> ep_step;
    metrics::CountersRecord counters;
    std::vector<metrics::ReconfigureRecord> reconfigures;
  };
  StepResult step(int64_t step);

  nn::ParameterStore& parameters() { return store_; }
  CapacityManager& capacity() { return capacity_; }
  comm::Topology& topology() { return topology_; }
  const model::Decoder& decoder() const { return decoder_; }
  /// Rank 0, after run(): the closing summary.
  std::string summary_text() const;

 private:
  RankReport forward_backward(int64_t step);
  void update(int64_t step, const StepAgreement& agreement);
  StepResult describe(int64_t step, const StepMessage& message, bool updated);
  void write(const StepResult& result);
  void evaluate_and_write(int64_t step);
  void show_progress(const StepResult& result) const;
  void write_run_record();

  Context& ctx_;
  comm::Communicator& world_;
  const config::Config& config_;
  SignalGate& signals_;
  comm::Topology topology_;
  nn::ParameterStore store_;
  model::Decoder decoder_;
  optim::AdamW optimizer_;
  optim::GradientSync sync_;
  CapacityManager capacity_;
  data::BatchSource train_data_;
  std::unique_ptr<data::BatchSource> valid_data_;
  autograd::Tape tape_;
  std::unique_ptr<metrics::JsonlSink> sink_;
  std::unique_ptr<RunSummary> summary_;
  std::vector<int64_t> step_capacities_;
  int64_t step_epoch_ = 0;
  int64_t updates_ = 0;
  bool stop_ = false;
};

}  // namespace spillway::train
