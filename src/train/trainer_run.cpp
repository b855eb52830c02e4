// The run around the steps: metrics, evaluation, checkpoints, the closing summary.

#include "spillway/config/json.h"
#include "spillway/core/log.h"
#include "spillway/data/ngram_entropy.h"
#include "spillway/train/ep_metrics.h"
#include "spillway/train/resume.h"
#include "spillway/train/trainer.h"
#include "spillway/train/version.h"

namespace spillway::train {

void Trainer::write_run_record() {
  const model::ParameterCounts counts = model::count_parameters(config::decoder_config(config_));
  sink_->write(
      metrics::RunRecord{.config_json = config::to_json_text(config_, -1),
                         .git_commit = source_version(),
                         .world = world_.size(),
                         .ep = topology_.ep(),
                         .dp = topology_.dp(),
                         .device = device_name(ctx_.device()),
                         .threads = ctx_.num_threads(),
                         .parameters_total = counts.total,
                         .parameters_active = counts.active,
                         .resumed_from = resumed_ ? std::optional(resumed_->step) : std::nullopt});
  sink_->flush();
}

void Trainer::write(const StepResult& result) {
  sink_->write(result.record);
  if (config::full_ep_lines(config_, world_.size())) {
    for (const metrics::EpRecord& line : result.ep) sink_->write(line);
  }
  for (const metrics::EpStepRecord& line : result.ep_step) sink_->write(line);
  sink_->write(result.counters);
  for (const metrics::ReconfigureRecord& line : grow_records(result.ep)) {
    sink_->write(line);
    summary_->add_reconfigure(line);
  }
  for (const metrics::ReconfigureRecord& line : result.reconfigures) {
    sink_->write(line);
    summary_->add_reconfigure(line);
  }
  sink_->flush();
  const int64_t assignments =
      result.record.tokens * config_.moe.top_k * static_cast<int64_t>(capacity_.layer_ids().size());
  summary_->add_step(result.record, result.ep_step, assignments);
}

EvalResult Trainer::evaluate_and_write() {
  const EvalResult result =
      evaluate(ctx_, world_, config_, decoder_, *valid_data_, capacity_, signals_, steps_done_);
  stop_ = stop_ || result.stopped;
  // A part of the held-out text has another loss: no line for it.
  if (!sink_ || result.stopped) return result;
  const metrics::EvalRecord record{.step = steps_done_,
                                   .loss = result.loss,
                                   .tokens = result.tokens,
                                   .dropped_assignments = result.dropped_assignments};
  sink_->write(record);
  sink_->flush();
  summary_->set_eval(record);
  log::info("step ", steps_done_, " held-out loss ", result.loss, " over ", result.tokens,
            " tokens");
  return result;
}

checkpoint::SaveResult Trainer::save_checkpoint(bool evaluation_due) {
  const checkpoint::RunState state{.step = steps_done_,
                                   .updates = updates_,
                                   .epoch = capacity_.session().epoch(),
                                   .evaluation_due = evaluation_due,
                                   .controller = capacity_.state(),
                                   .config_json = config::to_json_text(config_),
                                   .world = world_.size(),
                                   .ep = topology_.ep(),
                                   .threads = ctx_.num_threads(),
                                   .version = source_version()};
  checkpoint::SaveResult saved =
      checkpoint::save(ctx_, config_.run.dir, checkpoint_parts(), state, config_.checkpoint.keep);
  if (sink_) {
    sink_->write(metrics::CheckpointRecord{.step = steps_done_,
                                           .path = saved.path,
                                           .bytes = saved.bytes,
                                           .write_ms = saved.milliseconds});
    sink_->flush();
    log::info("step ", steps_done_, " checkpoint ", saved.path);
  }
  return saved;
}

void Trainer::begin_output() {
  if (world_.rank() != 0) return;
  if (resumed_) rewind_run_dir(config_, config_.checkpoint.resume);
  sink_ = std::make_unique<metrics::JsonlSink>(config_.run.dir + "/" + config_.log.metrics);
  summary_ = std::make_unique<RunSummary>(config_.train.steps, capacity_.facts().worst_case_slots,
                                          capacity_.facts().balanced_slots);
  write_run_record();
  if (resumed_) warn_about_resume();
}

void Trainer::warn(const std::string& message) {
  log::warning(message);
  sink_->write(metrics::WarningRecord{.step = steps_done_, .message = message});
  sink_->flush();
}

void Trainer::warn_about_another_cut(const config::Config& before) {
  const config::TrainConfig &old = before.train, &now = config_.train;
  if (before.parallel.zero != config_.parallel.zero) {
    warn(str("parallel.zero was ", before.parallel.zero, ": the run goes on to rounding"));
  }
  if (old.micro_batch == now.micro_batch && old.grad_accum == now.grad_accum) return;
  // Tokens of a cell; those of all ranks in a micro-batch, the global batch being the same.
  const moe::AuxLoss aux = config_.moe.router.aux_loss;
  const bool other_term = (aux == moe::AuxLoss::kSwitch && old.micro_batch != now.micro_batch) ||
                          (aux == moe::AuxLoss::kGlobal && old.grad_accum != now.grad_accum);
  warn(str("train.micro_batch was ", old.micro_batch, " and train.grad_accum ", old.grad_accum,
           other_term ? ": the balance loss takes other tokens together from here on"
                      : ": the run goes on to rounding"));
}

void Trainer::warn_about_resume() {
  log::info("resumed from ", config_.checkpoint.resume, ", step ", steps_done_);
  if (!capacity_.restored()) {
    warn(str("the checkpoint's capacity state is of policy \"",
             resumed_->controller ? resumed_->controller->policy : "", "\" or of other sizes: \"",
             config_.capacity.policy, "\" starts afresh"));
  }
  if (resumed_->world != world_.size() || resumed_->ep != topology_.ep() ||
      resumed_->threads != ctx_.num_threads()) {
    warn(str("written with world ", resumed_->world, ", ep ", resumed_->ep, ", ", resumed_->threads,
             " threads a rank; now ", world_.size(), ", ", topology_.ep(), ", ", ctx_.num_threads(),
             ": the run goes on to rounding, not bit for bit"));
  }
  warn_about_another_cut(config::parse(resumed_->config_json));
  if (!resumed_->controller) return;
  const std::vector<int64_t> now = capacity_.capacities();
  for (size_t i = 0; i < now.size() && i < resumed_->controller->capacities.size(); ++i) {
    const int64_t before = resumed_->controller->capacities[i];
    if (before == now[i]) continue;
    sink_->write(metrics::ReconfigureRecord{.step = steps_done_,
                                            .epoch = capacity_.session().epoch(),
                                            .layer = capacity_.layer_ids()[i],
                                            .kind = metrics::ReconfigureKind::kResume,
                                            .old_capacity = before,
                                            .new_capacity = now[i],
                                            .reason = "the config of the resumed run",
                                            .mode = "buffers"});
  }
  sink_->flush();
}

void Trainer::finish_step(bool checkpoint_asked, bool evaluation_only) {
  const bool last = steps_done_ == config_.train.steps;
  const auto falls_due = [this](int64_t every) { return every > 0 && steps_done_ % every == 0; };
  bool evaluation_due =
      valid_data_ && (evaluation_only || last || falls_due(config_.train.eval_every));
  if (evaluation_due && !stop_) {
    const EvalResult result = evaluate_and_write();
    evaluation_due = result.stopped;
    checkpoint_asked = checkpoint_asked || result.checkpoint;
  }
  const int64_t every = config_.checkpoint.every;
  // One that says that its evaluation is due is replaced once that is made.
  if (stop_ || checkpoint_asked || evaluation_only || falls_due(every) || (every > 0 && last)) {
    save_checkpoint(evaluation_due);
  }
}

void Trainer::run() {
  begin_output();
  const int64_t steps = config_.train.steps;
  // What a signal cut short comes first.
  if (resumed_ && resumed_->evaluation_due) finish_step(false, /*evaluation_only=*/true);
  while (steps_done_ < steps && !stop_) {
    const StepResult result = step(steps_done_ + 1);
    if (sink_) write(result);
    const int64_t s = steps_done_;
    const bool show = config_.log.every > 0 && (s == 1 || s % config_.log.every == 0 || s == steps);
    if (sink_ && show) show_progress(result);
    stop_ = result.agreement.stop != 0;
    finish_step(result.agreement.checkpoint != 0, /*evaluation_only=*/false);
  }
  if (stop_) log::info("asked to stop: ended after step ", steps_done_, " of ", steps);
}

void Trainer::show_progress(const StepResult& result) const {
  double worst = 0.0;
  int64_t dropped = 0, worst_layer = -1;
  for (const metrics::EpStepRecord& layer : result.ep_step) {
    const double share =
        static_cast<double>(layer.max_total_recv_tokens) / static_cast<double>(layer.capacity);
    dropped += layer.dropped_assignments.value_or(0);
    if (share <= worst) continue;
    worst = share;
    worst_layer = layer.layer;
  }
  const double left = static_cast<double>(config_.train.steps - result.record.step);
  log::info(progress_line(result.record, config_.train.steps, worst_layer, worst, dropped,
                          left * summary_->seconds_a_step()));
}

std::string Trainer::summary_text() const {
  std::vector<std::string> baselines;
  // Not for a run that was asked to end: reading all of a large text takes its time.
  if (config_.data.format == data::TokenFormat::kText && valid_data_ && !stop_) {
    const data::NgramEntropy entropy =
        data::ngram_entropy(data::TokenStream::open(config_.data.train, config_.data.format));
    baselines.push_back(str("  For comparison, byte contexts counted on the training text: bigram ",
                            entropy.bigram, ", trigram ", entropy.trigram, " nats a byte."));
  }
  return summary_->text(baselines);
}

}  // namespace spillway::train
