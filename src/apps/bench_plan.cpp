// Planning one rank's rows: what prepare does besides the exchange of counts, in one process.
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "bench.h"
#include "bench_routing.h"
#include "spillway/core/choice.h"
#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/ep/plan_call.h"
#include "spillway/kernels/routing.h"
#include "spillway/kernels/score_bins.h"
#include "spillway/plan/score_order.h"
#include "spillway/train/step_timer.h"

namespace spillway::bench {
namespace {

// What the router of one rank of the group chose.
struct Source {
  Tensor topk_idx, gate;
};

plan::DropOrder order_of(const std::string& name) {
  plan::DropOrder order{};
  if (!parse_choice(plan::kDropOrderChoices, name, order)) {
    throw ConfigError(
        str("bench plan: --order is ", name, "; allowed: ", choice_list(plan::kDropOrderChoices)));
  }
  return order;
}

Tensor random_gates(Context& ctx, const PlanOptions& o, uint64_t stream) {
  Tensor gate = Tensor::empty(ctx, {o.tokens, o.top_k}, DType::kF32);
  const Rng rng(o.seed + 1, stream);
  for (int64_t i = 0; i < gate.numel(); ++i) {
    gate.data<float>()[i] = static_cast<float>(rng.uniform_at(static_cast<uint64_t>(i)));
  }
  return gate;
}

class PlanBench {
 public:
  explicit PlanBench(const PlanOptions& options)
      : options_(options),
        order_(order_of(options.order)),
        ctx_(Device::kCpu, omp_get_max_threads()),
        config_{.ep = options.ep,
                .num_experts = options.experts,
                .hidden = 1,
                .top_k = options.top_k,
                .alignment = options.alignment,
                .max_tokens_per_rank = options.tokens,
                .drop_on_overflow = true,
                .drop_order = order_},
        counts_(Tensor::empty(ctx_, {options.experts}, DType::kI64)) {
    config_.recv_capacity_per_rank = {
        options.alignment};  // any that is valid, until demand is known
    ep::validate(config_);
    matrix_ = {.ep = options.ep, .num_experts = options.experts};
    for (int64_t rank = 0; rank < options.ep; ++rank) {
      const auto stream = static_cast<uint64_t>(rank);
      sources_.push_back({random_routing(ctx_, options.tokens, options.top_k, options.experts,
                                         options.skew, options.seed, stream),
                          random_gates(ctx_, options, stream)});
      kernels::count_experts(ctx_, sources_.back().topk_idx, counts_);
      const int64_t* counts = counts_.data<int64_t>();
      matrix_.counts.insert(matrix_.counts.end(), counts, counts + options.experts);
    }
    const std::vector<int64_t> demand = demands();
    const int64_t highest = *std::max_element(demand.begin(), demand.end());
    capacity_ =
        std::max(options.alignment,
                 round_down(static_cast<int64_t>(static_cast<double>(highest) * options.capacity),
                            options.alignment));
    config_.recv_capacity_per_rank = {capacity_};
  }

  Json run() {
    if (order_ == plan::DropOrder::kScore) exchange_scores();
    std::vector<double> us;
    int64_t dropped = 0;
    for (int64_t i = 0; i < options_.warmup + options_.repeat; ++i) {
      const auto start = std::chrono::steady_clock::now();
      dropped = plan_once();
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - start;
      if (i >= options_.warmup) us.push_back(time.count());
    }
    return {{"bench", "plan"},
            {"tokens", options_.tokens},
            {"top_k", options_.top_k},
            {"experts", options_.experts},
            {"ep", options_.ep},
            {"alignment", options_.alignment},
            {"skew", options_.skew},
            {"order", options_.order},
            {"seed", options_.seed},
            {"capacity", capacity_},
            {"dropped_assignments", dropped},  // in the group
            {"threads", ctx_.num_threads()},
            {"cpu", train::cpu_model()},
            {"us", spread_json(us)}};
  }

 private:
  // Of a rank that overflows: [S,L,256] each.
  struct ScoreBins {
    int64_t rank = 0;
    int64_t boundary = 0;
    std::vector<int32_t> coarse, fine;
  };

  std::vector<int64_t> demands() const {
    std::vector<int64_t> demand;
    for (int64_t rank = 0; rank < options_.ep; ++rank) {
      demand.push_back(plan::demand_slots(matrix_, rank, options_.alignment));
    }
    return demand;
  }

  // Histograms [O,L,256] of one source for the O ranks that overflow: coarse ones, or those of the
  // ranks' boundaries.
  Tensor bins_of(const Source& source, bool fine) {
    const int64_t experts_per_rank = matrix_.experts_per_rank();
    std::vector<kernels::ScoreBinRow> rows(static_cast<size_t>(options_.experts));
    int32_t row = 0;
    for (const ScoreBins& bins : score_bins_) {
      for (int64_t local = 0; local < experts_per_rank; ++local) {
        rows[static_cast<size_t>(bins.rank * experts_per_rank + local)] = {
            row++, fine ? static_cast<int32_t>(bins.boundary) : -1};
      }
    }
    Tensor all = Tensor::empty(ctx_, {row, kernels::kScoreBins}, DType::kI32);
    kernels::score_bins(ctx_, {source.topk_idx, source.gate, rows, all});
    return all;
  }

  void boundaries() {
    for (ScoreBins& bins : score_bins_) {
      bins.boundary =
          plan::score_boundary(matrix_, bins.rank, capacity_, options_.alignment, bins.coarse);
    }
  }

  // What two all-gathers bring to every rank. Not timed.
  void exchange_scores() {
    const std::vector<int64_t> demand = demands();
    for (int64_t rank = 0; rank < options_.ep; ++rank) {
      if (demand[static_cast<size_t>(rank)] > capacity_) score_bins_.push_back({.rank = rank});
    }
    const auto length =
        static_cast<std::ptrdiff_t>(matrix_.experts_per_rank() * kernels::kScoreBins);
    for (const bool fine : {false, true}) {
      for (const Source& source : sources_) {
        const Tensor all = bins_of(source, fine);
        const int32_t* from = all.data<int32_t>();
        for (ScoreBins& bins : score_bins_) {
          std::vector<int32_t>& to = fine ? bins.fine : bins.coarse;
          to.insert(to.end(), from, from + length);
          from += length;
        }
      }
      if (!fine) boundaries();
    }
  }

  // Assignments that the group drops.
  int64_t plan_once() {
    const Source& own = sources_[0];
    kernels::count_experts(ctx_, own.topk_idx, counts_);
    const std::vector<int64_t> demand = demands();
    std::vector<plan::KeptRows> by_score(score_bins_.empty() ? 0 : demand.size());
    if (!score_bins_.empty()) {  // the rank's own histograms, though all are known here
      bins_of(own, false);
      boundaries();
      bins_of(own, true);
    }
    for (const ScoreBins& bins : score_bins_) {
      by_score[static_cast<size_t>(bins.rank)] = plan::keep_by_score(
          matrix_, bins.rank, capacity_, options_.alignment, bins.coarse, bins.boundary, bins.fine);
    }
    const ep::PrepareArgs prepare{.topk_idx = own.topk_idx, .gate = own.gate};
    const ep::CallPlan plan = ep::plan_call(
        ctx_, config_,
        {.prepare = prepare, .matrix = matrix_, .capacity = capacity_, .by_score = by_score});
    int64_t dropped = 0;
    for (const int64_t of_rank : plan.ledger.dropped_assignments) dropped += of_rank;
    return dropped;
  }

  const PlanOptions& options_;
  plan::DropOrder order_;
  Context ctx_;
  ep::EpConfig config_;
  Tensor counts_;
  plan::CountMatrix matrix_;
  std::vector<Source> sources_;
  std::vector<ScoreBins> score_bins_;
  int64_t capacity_ = 0;
};

}  // namespace

Json time_plan(const PlanOptions& options) {
  if (options.ep > options.experts || options.experts % options.ep != 0) {
    throw ConfigError(str("bench plan: --experts is ", options.experts,
                          "; allowed: a multiple of --ep = ", options.ep));
  }
  return PlanBench(options).run();
}

}  // namespace spillway::bench
