#include "distributed/ep/property_check.h"

namespace spillway::ep::test {
namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& x) {
  Values values(static_cast<size_t>(x.numel()));
  visit_float(x.dtype(), [&]<typename T>() {
    const T* from = x.data<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(static_cast<acc_t<T>>(from[i]));
    }
  });
  return values;
}

Tensor tensor_of(Context& ctx, const Shape& shape, DType dtype, const Values& values) {
  Tensor x = Tensor::empty(ctx, shape, dtype);
  visit_float(dtype, [&]<typename T>() {
    T* to = x.data<T>();
    for (size_t i = 0; i < values.size(); ++i)
      to[i] = static_cast<T>(static_cast<acc_t<T>>(values[i]));
  });
  return x;
}

void expect_values(const char* what, const Values& got, const Values& wanted, int64_t columns) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i]) continue;
    const auto index = static_cast<int64_t>(i);
    FAIL() << what << ": row " << index / columns << " column " << index % columns << " is "
           << got[i] << ", wanted " << wanted[i];
  }
}

// Small integers, different in neighbouring rows.
double dout_value(int64_t token, int64_t h) {
  return static_cast<double>((token * 5 + h) % 13 - 6);
}
double d_recv_value(int64_t rank, int64_t slot, int64_t h) {
  return static_cast<double>((rank * 31 + slot * 7 + h * 3) % 25 - 12);
}
// Names the slot; exact in f32.
double d_gate_value(int64_t rank, int64_t slot) {
  return static_cast<double>(1 + rank * (1 << 20) + slot);
}

Tensor moved(Context& ctx, Tensor& map) {
  if (!map.defined()) return map;
  Tensor copy = map.clone(ctx);
  if (map.unique() && map.numel() > 0) {
    std::fill_n(static_cast<unsigned char*>(map.raw_data()), map.bytes(), 0xa5);
  }
  map = Tensor{};
  return copy;
}

// The handle in other memory; what the first one's maps leave behind is garbage.
RoutingHandle moved(Context& ctx, RoutingHandle from) {
  RoutingHandle to;
  to.header = from.header;
  to.send_assignment = moved(ctx, from.send_assignment);
  to.local_assignment = moved(ctx, from.local_assignment);
  to.local_slot = moved(ctx, from.local_slot);
  to.row_of = moved(ctx, from.row_of);
  to.topk_idx = moved(ctx, from.topk_idx);
  to.send_counts = from.send_counts;
  to.recv_counts = from.recv_counts;
  to.token_counts = from.token_counts;
  to.slot_counts = from.slot_counts;
  to.zone_begin = from.zone_begin;
  to.life = from.life;
  return to;
}

class Checker {
 public:
  explicit Checker(const CheckedCall& call)
      : call_(call),
        w_(call.w),
        config_(call.c.config),
        ranks_(make_truth(call.sources, config_, call.c.call, call.capacity)),
        me_(w_.topology.ep_rank()),
        mine_(call.sources[static_cast<size_t>(me_)]),
        batch_(batch_of(w_, call.c, mine_)) {}

  std::vector<RankTruth> run() {
    w_.ctx.counters().reset();
    forward();
    check_counts();
    check_ledger();
    check_conservation();
    check_dispatch();
    if (call_.deep_copy) prepared_.handle = moved(w_.ctx, std::move(prepared_.handle));
    check_combine();
    check_combine_backward();
    check_dispatch_backward();
    check_counters();
    return ranks_;
  }

 private:
  const RankTruth& here() const { return ranks_[static_cast<size_t>(me_)]; }
  int64_t num_tokens() const { return batch_.topk_idx.dim(0); }
  int64_t token_of(const RoutedRow& row) const {
    return named_token(w_.first_rank() + row.source, row.t);
  }
  bool dropped_anywhere() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.dropped() > 0; });
  }

  // f(receiving rank, row) for each row of this rank's tokens.
  template <typename F>
  void for_my_rows(F&& f) const {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const RoutedRow& row : ranks_[rank].rows) {
        if (row.source == me_) f(static_cast<int64_t>(rank), row);
      }
    }
  }

  // [num_slots, columns]: value(row, column) in kept rows, `padding` elsewhere.
  template <typename F>
  Values slot_values(int64_t num_slots, int64_t columns, double padding, F&& value) const {
    Values values(static_cast<size_t>(num_slots * columns), padding);
    for (const RoutedRow& row : here().rows) {
      if (!row.kept) continue;
      for (int64_t h = 0; h < columns; ++h) {
        values[static_cast<size_t>(row.slot * columns + h)] = value(row, h);
      }
    }
    return values;
  }

  void forward() {
    const PrepareArgs args{.call = call_.c.call,
                           .topk_idx = batch_.topk_idx,
                           .gate = batch_.gate,
                           .sizing = call_.sizing};
    if (call_.c.fused) {
      auto both = w_.session.prepare_and_dispatch(args, batch_.tokens);
      prepared_ = std::move(both.prepare);
      sent_ = std::move(both.dispatch);
    } else {
      prepared_ = w_.session.prepare(args);
      sent_ = w_.session.dispatch(prepared_.handle, args.call, batch_.tokens, batch_.gate);
    }
  }

  void check_counts() {
    EXPECT_EQ(prepared_.handle.header.capacity, call_.capacity);
    EXPECT_EQ(sent_.recv_tokens.shape(), (Shape{call_.capacity, config_.hidden}));
    EXPECT_EQ(sent_.recv_gate.shape(), (Shape{call_.capacity}));
    EXPECT_EQ(prepared_.total_recv_tokens, here().demand);
    EXPECT_EQ(prepared_.recv_assignments, static_cast<int64_t>(here().rows.size()));
    EXPECT_EQ(prepared_.token_counts, here().token_counts);
    EXPECT_EQ(prepared_.slot_counts, here().slot_counts);
    EXPECT_EQ(prepared_.handle.zone_begin, here().zone_begin);
  }

  void check_ledger() {
    const Ledger& ledger = prepared_.ledger;
    const auto ranks = static_cast<size_t>(config_.ep);
    const int64_t experts_per_rank = config_.num_experts / config_.ep;
    std::vector<int64_t> by_source(ranks, 0);
    std::vector<int64_t> routed(static_cast<size_t>(config_.num_experts), 0), lost = routed;
    int64_t group_tokens = 0;
    for (const auto& choices : call_.sources) {
      group_tokens += static_cast<int64_t>(choices.size()) / config_.top_k;
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      const RankTruth& truth = ranks_[rank];
      for (const RoutedRow& row : truth.rows) {
        const auto expert =
            static_cast<size_t>(static_cast<int64_t>(rank) * experts_per_rank + row.local_expert);
        ++routed[expert];
        if (row.kept) continue;
        ++lost[expert];
        ++by_source[static_cast<size_t>(row.source)];
      }
      EXPECT_EQ(ledger.total_recv_tokens[rank], truth.demand);
      EXPECT_EQ(ledger.recv_assignments[rank], static_cast<int64_t>(truth.rows.size()));
      EXPECT_EQ(ledger.dropped_assignments[rank], truth.dropped());
      EXPECT_EQ(ledger.slot_counts_sum[rank], truth.num_slots());
      EXPECT_LE(ledger.slot_counts_sum[rank], call_.capacity);
      EXPECT_EQ(ledger.padding_slots[rank], truth.num_slots() - truth.num_kept);
      // Overflow on a rank exactly when it drops.
      EXPECT_EQ(ledger.total_recv_tokens[rank] > call_.capacity,
                ledger.dropped_assignments[rank] > 0);
    }
    EXPECT_EQ(ledger.dropped_by_source, by_source);
    EXPECT_EQ(ledger.dropped_by_expert, lost);
    EXPECT_EQ(ledger.expert_tokens, routed);
    EXPECT_EQ(ledger.group_tokens, group_tokens);
    EXPECT_EQ(ledger.capacity_begin,
              call_.sizing == Sizing::kLossless ? call_.capacity : call_.capacity_before);
    EXPECT_EQ(ledger.capacity_end, call_.capacity);
    EXPECT_EQ(ledger.recv_buffer_bytes,
              call_.capacity *
                  (config_.hidden * dtype_bytes(config_.dtype) + dtype_bytes(batch_.gate.dtype())));
    check_own_losses();
  }

  // What the ledger says of this rank's tokens.
  void check_own_losses() {
    std::vector<int64_t> had(static_cast<size_t>(num_tokens()), 0), kept = had;
    double mass = 0.0, dropped_mass = 0.0;
    for_my_rows([&](int64_t, const RoutedRow& row) {
      ++had[static_cast<size_t>(row.t)];
      kept[static_cast<size_t>(row.t)] += row.kept ? 1 : 0;
      mass += row.gate;
      if (!row.kept) dropped_mass += row.gate;
    });
    int64_t fully_dropped = 0;
    for (size_t t = 0; t < had.size(); ++t) fully_dropped += had[t] > 0 && kept[t] == 0 ? 1 : 0;
    EXPECT_EQ(prepared_.ledger.fully_dropped_tokens, fully_dropped);
    EXPECT_EQ(prepared_.ledger.gate_mass, mass);
    EXPECT_EQ(prepared_.ledger.dropped_gate_mass, dropped_mass);
  }

  // Kept + dropped = routed, by what the results say, without the reference.
  void check_conservation() {
    const Ledger& ledger = prepared_.ledger;
    const RoutingHandle& handle = prepared_.handle;
    const auto sum = [](const auto& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); };
    const auto me = static_cast<size_t>(me_);
    const size_t experts_per_rank = prepared_.token_counts.size();
    for (size_t e = 0; e < experts_per_rank; ++e) {
      const size_t expert = me * experts_per_rank + e;
      EXPECT_EQ(prepared_.token_counts[e] + ledger.dropped_by_expert[expert],
                ledger.expert_tokens[expert]);
    }
    EXPECT_EQ(sum(prepared_.token_counts) + ledger.dropped_assignments[me],
              prepared_.recv_assignments);
    const auto routed_here = std::count_if(mine_.begin(), mine_.end(),
                                           [](const Choice& choice) { return choice.expert >= 0; });
    EXPECT_EQ(sum(handle.send_counts) + ledger.dropped_by_source[me], routed_here);
    EXPECT_EQ(sum(handle.recv_counts), sum(prepared_.token_counts));
    EXPECT_EQ(sum(ledger.dropped_assignments), sum(ledger.dropped_by_expert));
    EXPECT_EQ(sum(ledger.dropped_assignments), sum(ledger.dropped_by_source));
  }

  void check_dispatch() {
    const int64_t used = here().num_slots();
    expect_values("recv_tokens", values_of(sent_.recv_tokens.rows(0, used)),
                  slot_values(used, config_.hidden, 0.0,
                              [&](const RoutedRow& row, int64_t h) {
                                return static_cast<double>(token_value(token_of(row), h));
                              }),
                  config_.hidden);
    expect_values("recv_gate", values_of(sent_.recv_gate.rows(0, used)),
                  slot_values(used, 1, 0.0, [](const RoutedRow& row, int64_t) { return row.gate; }),
                  1);
  }

  // Experts multiply by the gate, and leave NaN where nobody may read.
  void check_combine() {
    const int64_t columns = config_.hidden;
    const Values tokens = values_of(sent_.recv_tokens), gates = values_of(sent_.recv_gate);
    const Values weighted =
        slot_values(call_.capacity, columns, std::nan(""), [&](const RoutedRow& row, int64_t h) {
          return gates[static_cast<size_t>(row.slot)] *
                 tokens[static_cast<size_t>(row.slot * columns + h)];
        });
    Values wanted(static_cast<size_t>(num_tokens() * columns), 0.0);
    for_my_rows([&](int64_t, const RoutedRow& row) {
      for (int64_t h = 0; h < columns && row.kept; ++h) {
        wanted[static_cast<size_t>(row.t * columns + h)] +=
            row.gate * static_cast<double>(token_value(token_of(row), h));
      }
    });
    // The sum is exact in fp32; it is rounded once, to the dtype of the rows.
    for (double& value : wanted) value = spillway::testing::rounded(value, config_.dtype);
    const Tensor out =
        w_.session.combine(prepared_.handle, call_.c.call,
                           tensor_of(w_.ctx, sent_.recv_tokens.shape(), config_.dtype, weighted));
    expect_values("combine", values_of(out), wanted, columns);
  }

  void check_combine_backward() {
    const int64_t columns = config_.hidden;
    const Tensor dout =
        fill(w_.ctx, {num_tokens(), columns}, config_.dtype,
             [&](int64_t t, int64_t h) { return dout_value(named_token(w_.rank(), t), h); });
    const Tensor got = w_.session.combine_backward(prepared_.handle, call_.c.call, dout);
    ASSERT_EQ(got.shape(), sent_.recv_tokens.shape());
    const int64_t used = here().num_slots();
    expect_values(
        "d_expert_out", values_of(got.rows(0, used)),
        slot_values(used, columns, 0.0,
                    [&](const RoutedRow& row, int64_t h) { return dout_value(token_of(row), h); }),
        columns);
  }

  void check_dispatch_backward() {
    const int64_t columns = config_.hidden;
    const Values d_recv = slot_values(
        call_.capacity, columns, std::nan(""),
        [&](const RoutedRow& row, int64_t h) { return d_recv_value(me_, row.slot, h); });
    const Values d_recv_gate =
        slot_values(call_.capacity, 1, std::nan(""),
                    [&](const RoutedRow& row, int64_t) { return d_gate_value(me_, row.slot); });
    const DispatchBackwardResult back = w_.session.dispatch_backward(
        prepared_.handle, call_.c.call,
        tensor_of(w_.ctx, {call_.capacity, columns}, config_.dtype, d_recv),
        tensor_of(w_.ctx, {call_.capacity}, batch_.gate.dtype(), d_recv_gate));
    Values dx(static_cast<size_t>(num_tokens() * columns), 0.0);
    Values d_gate(static_cast<size_t>(num_tokens() * config_.top_k), 0.0);
    for_my_rows([&](int64_t rank, const RoutedRow& row) {
      if (!row.kept) return;
      for (int64_t h = 0; h < columns; ++h) {
        dx[static_cast<size_t>(row.t * columns + h)] += d_recv_value(rank, row.slot, h);
      }
      d_gate[static_cast<size_t>(row.t * config_.top_k + row.k)] = d_gate_value(rank, row.slot);
    });
    expect_values("dx", values_of(back.dx), dx, columns);
    expect_values("d_gate", values_of(back.d_gate), d_gate, config_.top_k);
  }

  void check_counters() {
    int64_t rows_to_others = 0, rows_from_others = 0;
    for_my_rows([&](int64_t rank, const RoutedRow& row) {
      rows_to_others += row.kept && rank != me_ ? 1 : 0;
    });
    for (const RoutedRow& row : here().rows) {
      rows_from_others += row.kept && row.source != me_ ? 1 : 0;
    }
    const int64_t row_bytes = config_.hidden * dtype_bytes(config_.dtype);
    const int64_t gate_bytes = dtype_bytes(batch_.gate.dtype());
    CounterSet wanted{.prepares = call_.c.fused ? 0 : 1,
                      .fused_prepares = call_.c.fused ? 1 : 0,
                      .forward_dispatches = 1,
                      .combines = 1,
                      .backward_transports = 2};
    // Forward and backward move the same rows, with gates once each.
    wanted.all_to_all_bytes = (rows_to_others + rows_from_others) * (2 * row_bytes + gate_bytes);
    if (config_.ep > 1) {
      const bool scores = config_.drop_order == plan::DropOrder::kScore && dropped_anywhere();
      wanted.host_syncs = scores ? 2 : 1;
    } else if (call_.sizing == Sizing::kLive && !config_.drop_on_overflow) {
      wanted.host_syncs = call_.capacity_before < worst_case(config_) ? 1 : 0;
    }
    const CounterSet& total = w_.ctx.counters().total();
    EXPECT_EQ(total.prepares, wanted.prepares);
    EXPECT_EQ(total.fused_prepares, wanted.fused_prepares);
    EXPECT_EQ(total.forward_dispatches, wanted.forward_dispatches);
    EXPECT_EQ(total.combines, wanted.combines);
    EXPECT_EQ(total.backward_transports, wanted.backward_transports);
    EXPECT_EQ(total.host_syncs, wanted.host_syncs);
    EXPECT_EQ(total.all_to_all_bytes, wanted.all_to_all_bytes);
  }

  const CheckedCall& call_;
  World& w_;
  const EpConfig& config_;
  std::vector<RankTruth> ranks_;
  int64_t me_;
  const std::vector<Choice>& mine_;
  Batch batch_;
  PrepareResult prepared_;
  DispatchResult sent_;
};

}  // namespace

std::vector<RankTruth> check_call(const CheckedCall& call) { return Checker(call).run(); }

}  // namespace spillway::ep::test
