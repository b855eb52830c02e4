#include "spillway/train/evaluation.h"

namespace spillway::train {

EvalResult evaluate(Context& ctx, comm::Communicator& world, const config::Config& config,
                    const model::Decoder& decoder, const data::BatchSource& source,
                    CapacityManager& capacity, SignalGate& signals, int64_t step) {
  struct CountersOff {
    Counters& counters;
    bool before = counters.set_enabled(false);
    ~CountersOff() { counters.set_enabled(before); }
  } off{ctx.counters()};

  const int64_t num_batches = source.num_eval_batches(config.train.eval_steps);
  const int64_t tokens_per_batch =
      config::sequences_per_step(config, world.size()) * config.data.seq;
  const bool lossless = config.capacity.eval == capacity::EvalCapacity::kLossless;
  EvalResult result;
  double loss_sum = 0.0;
  autograd::Tape tape(ctx, /*recording=*/false);
  for (int64_t batch = 0; batch < num_batches && !result.stopped; ++batch) {
    RankReport report;
    for (int64_t m = 0; m < config.train.grad_accum; ++m) {
      const data::Batch rows = source.eval_batch(ctx, batch, m);
      const moe::MoeCall call{.session = capacity.session(),
                              .step = step,
                              .micro_batch = m,
                              .sizing = lossless ? ep::Sizing::kLossless : ep::Sizing::kDrop,
                              .fused = config.ep.fused_prepare,
                              .records = &report.layers};
      report.loss_sum += decoder.forward(tape, rows.tokens, rows.targets, call).loss_sum;
    }
    for (const moe::LayerRecord& layer : report.layers) {
      // Each rank adds what it received less: every drop once.
      const auto here = static_cast<size_t>(world.rank() % config.parallel.ep);
      report.dropped_assignments += layer.ledger.dropped_assignments[here];
    }
    report.layers.clear();
    const PendingSignals pending = signals.take();
    report.stop = pending.stop;
    report.checkpoint = pending.checkpoint;
    const StepAgreement agreed = exchange_reports(world, report, 0).agreement;
    loss_sum += agreed.loss_sum;
    result.tokens += tokens_per_batch;
    result.dropped_assignments += agreed.dropped_assignments;
    result.stopped = agreed.stop != 0;
    result.checkpoint = result.checkpoint || agreed.checkpoint != 0;
  }
  result.loss = loss_sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace spillway::train
