#include "spillway/train/trainer.h"

#include <chrono>
#include <cmath>

#include "spillway/optim/grad_norm.h"
#include "spillway/optim/schedule.h"
#include "spillway/train/ep_metrics.h"
#include "spillway/train/memory_estimate.h"
#include "spillway/train/model_flops.h"
#include "spillway/train/replica_check.h"

namespace spillway::train {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Capacities that change leave blocks behind of sizes that no step asks for again.
void give_back_idle_memory(Allocator& allocator) {
  constexpr double kMostOverPeak = 1.5;
  const MemoryUse use = allocator.total();
  const int64_t held = use.current_bytes + allocator.cached_bytes();
  if (static_cast<double>(held) > kMostOverPeak * static_cast<double>(use.peak_bytes)) {
    allocator.trim();
  }
}

metrics::MemoryByPurpose memory_record(const PeakBytes& bytes) {
  const auto of = [&](Purpose purpose) { return bytes[static_cast<size_t>(purpose)]; };
  return {.weights = of(Purpose::kWeights),
          .gradients = of(Purpose::kGradients),
          .optimizer = of(Purpose::kOptimizer),
          .activations = of(Purpose::kActivations),
          .receive = of(Purpose::kReceive),
          .workspace = of(Purpose::kWorkspace),
          .data = of(Purpose::kData)};
}

metrics::SavedBytes saved_record(const SavedPeaks& bytes) {
  static_assert(std::tuple_size_v<SavedPeaks> == 6, "in the order of ops::kHeldNames");
  return {.routing = bytes[0],
          .dispatch = bytes[1],
          .router = bytes[2],
          .expert_up = bytes[3],
          .expert_act = bytes[4],
          .attention = bytes[5]};
}

data::BatchSource open_source(const config::Config& c, const std::vector<std::string>& paths,
                              const comm::Communicator& world) {
  return {data::TokenStream::open(paths, c.data.format, c.model.vocab_size),
          {.seq = c.data.seq,
           .shuffle = c.data.shuffle,
           .seed = static_cast<uint64_t>(c.run.seed),
           .layout = {.world = world.size(),
                      .rank = world.rank(),
                      .micro_batch = c.train.micro_batch,
                      .grad_accum = c.train.grad_accum}}};
}

std::optional<checkpoint::RunState> read_resumed(const config::Config& config) {
  if (config.checkpoint.resume == config::kNoResume) return std::nullopt;
  return checkpoint::read_state(config.checkpoint.resume);
}

}  // namespace

Trainer::Trainer(Context& ctx, comm::Communicator& world, const config::Config& config,
                 SignalGate& signals)
    : ctx_(ctx),
      world_(world),
      config_(config),
      signals_(signals),
      topology_(world, static_cast<int>(config.parallel.ep)),
      store_(ctx,
             model::parameter_specs(config::decoder_config(config), config::compute_dtype(config)),
             static_cast<uint64_t>(config.run.seed), config.parallel.ep, topology_.ep_rank()),
      decoder_(ctx, config::decoder_config(config), store_),
      optimizer_(ctx, store_, topology_, config.optim, config.parallel.zero == 1),
      sync_(store_, topology_, optimizer_.layout()),
      resumed_(read_resumed(config)),
      capacity_(ctx, topology_, config, resumed_ ? resumed_->controller : std::nullopt,
                resumed_ ? resumed_->epoch + 1 : 0),
      train_data_(open_source(config, config.data.train, world)),
      tape_(ctx) {
  if (!config.data.valid.empty()) {
    valid_data_ =
        std::make_unique<data::BatchSource>(open_source(config, config.data.valid, world));
    // Too little held-out text is said now, not after the last step.
    valid_data_->num_eval_batches(config.train.eval_steps);
  }
  sync_.attach(tape_);
  if (resumed_) {
    checkpoint::load(ctx_, config.checkpoint.resume, checkpoint_parts());
    steps_done_ = resumed_->step;
    updates_ = resumed_->updates;
  }
}

checkpoint::Parts Trainer::checkpoint_parts() {
  std::vector<checkpoint::NamedTensor> buffers;
  for (const moe::SelectionBias& bias : decoder_.selection_biases()) {
    buffers.push_back({bias.name, bias.values});
  }
  return {.topology = topology_,
          .config = decoder_.config(),
          .store = store_,
          .optimizer = optimizer_,
          .buffers = std::move(buffers)};
}

RankReport Trainer::forward_backward(int64_t step) {
  RankReport report;
  const int64_t cells = world_.size() * config_.train.grad_accum;
  const int64_t tokens = config::sequences_per_step(config_, world_.size()) * config_.data.seq;
  store_.zero_gradients(ctx_);
  ctx_.counters().reset();
  ctx_.allocator()->reset_peaks();
  tape_.reset_saved_peaks();
  for (int64_t m = 0; m < config_.train.grad_accum; ++m) {
    const data::Batch batch = train_data_.batch(ctx_, step, m);
    if (m + 1 == config_.train.grad_accum) sync_.begin_last_micro_batch();
    const moe::MoeCall call{.session = capacity_.session(),
                            .step = step,
                            .micro_batch = m,
                            .fused = config_.ep.fused_prepare,
                            .cell_scale = 1.0 / static_cast<double>(cells),
                            .token_scale = 1.0 / static_cast<double>(tokens),
                            .world = &world_,
                            .records = &report.layers,
                            .choices = observer_.choices,
                            .logits = observer_.logits};
    const model::ForwardResult result = decoder_.forward(tape_, batch.tokens, batch.targets, call);
    tape_.backward(result.objective);
    report.loss_sum += result.loss_sum;
    report.aux_loss += result.aux_loss;
    report.z_loss += result.z_loss;
  }
  sync_.finish(ctx_);

  report.norm_squares =
      optim::norm_squares_contribution(ctx_, store_, topology_, optimizer_.layout());
  report.finite = std::isfinite(report.loss_sum) ? 1 : 0;
  report.counters = ctx_.counters().total();
  report.backward_counters = ctx_.counters().backward();
  report.avoided_counters = ctx_.counters().avoided();
  report.mem_peak_bytes = ctx_.allocator()->total().peak_bytes;
  report.peak_by_purpose = peak_bytes(*ctx_.allocator());
  report.saved_peaks = saved_peaks(tape_.saved_bytes());
  for (const moe::LayerRecord& layer : report.layers) {
    report.dropped_assignments +=
        layer.ledger.dropped_assignments[static_cast<size_t>(topology_.ep_rank())];
  }
  if (config_.capacity.on_overflow == capacity::OnOverflow::kSkip) {
    report.skip = report.dropped_assignments > 0 ? 1 : 0;
  }
  const PendingSignals pending = signals_.take();
  report.stop = pending.stop ? 1 : 0;
  report.checkpoint = pending.checkpoint ? 1 : 0;
  return report;
}

void Trainer::update(int64_t step, const StepAgreement& agreement) {
  const double lr = optim::learning_rate(config_.optim, step, config_.train.steps);
  optimizer_.step(ctx_, lr, optim::clip_scale(agreement.grad_norm, config_.optim.clip), ++updates_);
  for (moe::SelectionBias& bias : decoder_.selection_biases()) {
    moe::update_selection_bias(bias.values,
                               agreement.expert_counts[static_cast<size_t>(bias.moe_layer)],
                               config_.moe.router.bias_update_rate);
  }
}

Trainer::StepResult Trainer::step(int64_t step) {
  const Clock::time_point start = Clock::now();
  step_capacities_ = capacity_.capacities();
  step_epoch_ = capacity_.session().epoch();
  const RankReport report = forward_backward(step);
  const StepMessage message =
      exchange_reports(world_, report, static_cast<int64_t>(capacity_.layer_ids().size()));
  const StepAgreement& agreement = message.agreement;
  if (agreement.counters_differ_on >= 0) {
    throw CommError(str("step ", step, ": rank ", agreement.counters_differ_on,
                        " counted other EP calls than rank 0"));
  }
  const bool finite = agreement.finite != 0;
  if (!finite && config_.train.on_nonfinite == config::OnNonfinite::kStop) {
    throw DivergedError(str("step ", step, ": loss or gradients are not finite (loss sum ",
                            agreement.loss_sum, ", gradient norm ", agreement.grad_norm,
                            "): lower optim.lr, or set train.on_nonfinite to \"skip\""));
  }
  const bool updated = finite && agreement.skip == 0;
  const bool check = config_.train.check_replicas > 0 && step % config_.train.check_replicas == 0;
  // Under ZeRO-1 the update makes values equal again: what differs shows before it only.
  const bool sharded = optimizer_.layout().sharded;
  if (check && sharded) check_replicas(store_, topology_, decoder_.selection_biases());
  if (updated) update(step, agreement);
  StepResult result = describe(step, message, updated);
  result.reconfigures = capacity_.after_step(step, agreement);
  give_back_idle_memory(*ctx_.allocator());
  if (check && !sharded) check_replicas(store_, topology_, decoder_.selection_biases());
  steps_done_ = step;
  result.record.step_ms = ms_since(start);
  const double seconds = result.record.step_ms / 1000.0;
  result.record.tokens_per_s = static_cast<double>(result.record.tokens) / seconds;
  result.record.tflops =
      step_flops(config_, world_.size()) / seconds / static_cast<double>(world_.size()) / 1e12;
  return result;
}

Trainer::StepResult Trainer::describe(int64_t step, const StepMessage& message, bool updated) {
  const StepAgreement& agreement = message.agreement;
  StepResult result;
  result.agreement = agreement;
  const int64_t tokens = config::sequences_per_step(config_, world_.size()) * config_.data.seq;
  result.record = {.step = step,
                   .loss = agreement.loss_sum / static_cast<double>(tokens),
                   .aux_loss = agreement.aux_loss,
                   .z_loss = agreement.z_loss,
                   .grad_norm = agreement.grad_norm,
                   .lr = optim::learning_rate(config_.optim, step, config_.train.steps),
                   .tokens = tokens,
                   .mem_peak_bytes = agreement.mem_peak_bytes,
                   .mem_peak_by_purpose = memory_record(agreement.peak_by_purpose),
                   .saved_bytes = saved_record(agreement.saved_peaks),
                   .skipped = !updated};
  if (message.reports.empty()) return result;
  const EpMetricsContext context{.ep = topology_.ep(),
                                 .dp = topology_.dp(),
                                 .num_experts = config_.moe.experts,
                                 .top_k = config_.moe.top_k,
                                 .alignment = config_.moe.alignment,
                                 .epoch = step_epoch_,
                                 .layer_ids = capacity_.layer_ids(),
                                 .capacity = step_capacities_,
                                 .capacity_sized_row_bytes = capacity_sized_row_bytes(config_)};
  result.counters = counters_record(message.reports, agreement, step);
  if (!capacity_.has_experts()) return result;
  result.ep = ep_records(message.reports, step, context);
  result.ep_step = ep_step_records(message.reports, step, context);
  return result;
}

}  // namespace spillway::train
