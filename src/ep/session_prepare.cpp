// From the router's choice to the routing handle: who sends what, where it lands, what is dropped.
#include <algorithm>

#include "buffers.h"
#include "count_exchange.h"
#include "score_exchange.h"
#include "spillway/core/math.h"
#include "spillway/ep/plan_call.h"
#include "spillway/plan/scaling.h"
#include "spillway/plan/sizing.h"
#include "stopwatch.h"

namespace spillway::ep {

OverflowError::OverflowError(int64_t layer, int64_t rank, int64_t demand, int64_t capacity,
                             int64_t smallest, const std::string& key)
    : Error(
          str("OverflowError: layer ", layer, " rank ", rank, " demand ", demand,
              " slots capacity ", capacity, " slots, smallest that fits ", smallest, ": set ", key),
          ExitCode::kOverflow) {}

namespace {

int64_t worst_case(const EpConfig& config) {
  return plan::worst_case_slots(checked_mul(config.ep, config.max_tokens_per_rank), config.top_k,
                                config.num_experts / config.ep, config.alignment);
}

}  // namespace

struct Session::Sized {
  int64_t capacity = 0;        // C
  double grow_alloc_ms = 0.0;  // of the buffer that `grow` made
};

// C of a call. Every rank of the group has the same demands, so all take the same decision.
Session::Sized Session::choose_capacity(const PrepareArgs& args,
                                        const std::vector<int64_t>& demand_slots) {
  const auto highest = std::max_element(demand_slots.begin(), demand_slots.end());
  if (args.sizing == Sizing::kLossless) return {std::max(*highest, config_.alignment)};
  const auto layer = static_cast<size_t>(args.call.layer);
  const int64_t now = args.capacity > 0 ? args.capacity : capacities_[layer];
  if (*highest <= now || config_.drop_on_overflow || args.sizing == Sizing::kDrop) return {now};
  if (config_.grow_on_overflow && args.capacity == 0) {
    capacities_[layer] =
        plan::grown_capacity(*highest, config_.grow_margin, config_.alignment, worst_case(config_));
    Stopwatch watch;
    buffers_->keep_only(capacities_);
    buffers_->reserve(ctx_, {capacities_[layer]}, config_);
    return {capacities_[layer], watch.lap_ms()};
  }
  const int64_t first_rank = topology_.world().rank() - topology_.ep_rank();
  throw OverflowError(config_.layer_ids.empty() ? args.call.layer : config_.layer_ids[layer],
                      first_rank + (highest - demand_slots.begin()), *highest, now,
                      round_up(*highest, config_.alignment), config_.capacity_key);
}

HandleHeader Session::make_header(const PrepareArgs& args, int64_t capacity) const {
  return {.magic = kHandleMagic,
          .version = kHandleVersion,
          .session_id = session_id_,
          .epoch = epoch_,
          .layer = args.call.layer,
          .micro_batch = args.call.micro_batch,
          .step = args.call.step,
          .num_tokens = args.topk_idx.dim(0),
          .top_k = config_.top_k,
          .num_experts = config_.num_experts,
          .ep = config_.ep,
          .alignment = config_.alignment,
          .capacity = capacity,
          .index_type = static_cast<int64_t>(kIndexType),
          .drop_order = static_cast<int64_t>(config_.drop_order)};
}

PrepareResult Session::plan(const PrepareArgs& args) {
  require_active("prepare");
  const GroupCounts counts = exchange_counts(ctx_, topology_, config_, args);
  const auto layer = static_cast<size_t>(args.call.layer);
  const int64_t capacity_before = args.capacity > 0 ? args.capacity : capacities_[layer];
  // The host waits for counts of other ranks; at ep = 1 for its own where it must fail or grow.
  const bool may_overflow = args.sizing == Sizing::kLive && !config_.drop_on_overflow &&
                            capacity_before < worst_case(config_);
  if (config_.ep > 1 || may_overflow) ctx_.counters().add(&CounterSet::host_syncs);

  std::vector<int64_t> demand;
  for (int64_t rank = 0; rank < config_.ep; ++rank) {
    demand.push_back(plan::demand_slots(counts.matrix, rank, config_.alignment));
  }
  const Sized sized = choose_capacity(args, demand);
  const int64_t capacity = sized.capacity;
  std::vector<plan::KeptRows> by_score;
  const bool overflow = *std::max_element(demand.begin(), demand.end()) > capacity;
  if (overflow && config_.drop_order == plan::DropOrder::kScore) {
    by_score = exchange_scores(ctx_, topology_, config_, args, counts.matrix, capacity, demand);
    // Once for the pair of exchanges: a device finds the boundary between them itself.
    if (config_.ep > 1) ctx_.counters().add(&CounterSet::host_syncs);
  }
  const int64_t rank = topology_.ep_rank();
  CallPlan call = plan_call(ctx_, config_,
                            {.prepare = args,
                             .matrix = counts.matrix,
                             .ep_rank = rank,
                             .capacity = capacity,
                             .by_score = by_score});

  PrepareResult result;
  result.handle = std::move(call.handle);
  result.ledger = std::move(call.ledger);
  RoutingHandle& handle = result.handle;
  handle.header = make_header(args, capacity);
  if (config_.poison) handle.header.maps_checksum = maps_checksum(handle);
  handle.header.checksum = header_checksum(handle.header);
  handle.life = std::make_shared<HandleLife>(live_);

  result.token_counts = handle.token_counts;
  result.slot_counts = handle.slot_counts;
  result.recv_assignments = result.ledger.recv_assignments[static_cast<size_t>(rank)];
  result.total_recv_tokens = result.ledger.total_recv_tokens[static_cast<size_t>(rank)];
  result.ledger.group_tokens = counts.num_tokens;
  result.ledger.capacity_begin = args.sizing == Sizing::kLossless ? capacity : capacity_before;
  result.ledger.capacity_end = capacity;
  result.ledger.grow_alloc_ms = sized.grow_alloc_ms;
  result.ledger.recv_buffer_bytes =
      capacity * (config_.hidden * dtype_bytes(config_.dtype) + dtype_bytes(args.gate.dtype()));
  return result;
}

PrepareResult Session::prepare(const PrepareArgs& args) {
  PrepareResult result = plan(args);
  ctx_.counters().add(&CounterSet::prepares);
  return result;
}

PrepareAndDispatchResult Session::prepare_and_dispatch(const PrepareArgs& args,
                                                       const Tensor& tokens) {
  PrepareAndDispatchResult result;
  result.prepare = plan(args);
  ctx_.counters().add(&CounterSet::fused_prepares);
  result.dispatch = dispatch(result.prepare.handle, args.call, tokens, args.gate);
  return result;
}

}  // namespace spillway::ep
