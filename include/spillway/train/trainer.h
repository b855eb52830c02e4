#pragma once
// The step loop. One object a process; all public calls are collectives of the world.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spillway/checkpoint/checkpoint.h"
#include "spillway/config/config.h"
#include "spillway/data/batches.h"
#include "spillway/metrics/jsonl_sink.h"
#include "spillway/model/decoder.h"
#include "spillway/optim/adamw.h"
#include "spillway/optim/gradient_sync.h"
#include "spillway/train/capacity_manager.h"
#include "spillway/train/evaluation.h"
#include "spillway/train/run_summary.h"
#include "spillway/train/signals.h"

namespace spillway::train {

class Trainer {
 public:
  /// Builds model, optimizer, data and EP session. The config must be valid for the world. Keeps
  /// references; all must outlive it. `checkpoint.resume`, unless "none", is the directory of the
  /// checkpoint to go on from (config/resume_rules.h says which keys may have changed).
  Trainer(Context& ctx, comm::Communicator& world, const config::Config& config,
          SignalGate& signals);

  /// Trains to the last step (or a stop signal), evaluating and writing checkpoints as configured.
  /// Metrics and checkpoints go to the run directory, which must exist.
  void run();
  /// Steps that lie behind, those before the checkpoint included.
  int64_t steps_done() const { return steps_done_; }
  /// Writes a checkpoint of the state after the last step; true for `evaluation_due` when the
  /// evaluation that belongs to it has still to be made.
  checkpoint::SaveResult save_checkpoint(bool evaluation_due);

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

  /// Where the forward of training steps puts what the routers of this rank decided, in order of
  /// (micro-batch, MoE layer); null: nowhere.
  struct RoutingObserver {
    std::vector<Tensor>* choices = nullptr;  ///< i32 [T,K]
    std::vector<Tensor>* logits = nullptr;   ///< [T,E]
  };
  void observe_routing(const RoutingObserver& observer) { observer_ = observer; }

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
  checkpoint::Parts checkpoint_parts();
  // trainer_run.cpp
  void begin_output();
  void write_run_record();
  void warn(const std::string& message);
  void warn_about_resume();
  void warn_about_another_cut(const config::Config& before);
  void write(const StepResult& result);
  void finish_step(bool checkpoint_asked, bool evaluation_only);
  EvalResult evaluate_and_write();
  void show_progress(const StepResult& result) const;

  Context& ctx_;
  comm::Communicator& world_;
  const config::Config& config_;
  SignalGate& signals_;
  comm::Topology topology_;
  nn::ParameterStore store_;
  model::Decoder decoder_;
  optim::AdamW optimizer_;
  optim::GradientSync sync_;
  std::optional<checkpoint::RunState> resumed_;
  CapacityManager capacity_;
  data::BatchSource train_data_;
  std::unique_ptr<data::BatchSource> valid_data_;
  autograd::Tape tape_;
  std::unique_ptr<metrics::JsonlSink> sink_;
  std::unique_ptr<RunSummary> summary_;
  std::vector<int64_t> step_capacities_;
  int64_t step_epoch_ = 0;
  int64_t steps_done_ = 0;
  int64_t updates_ = 0;
  bool stop_ = false;
  RoutingObserver observer_;
};

}  // namespace spillway::train
