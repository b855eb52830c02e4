// Moving rows to experts and back, against MPI's own all-to-all of the same bytes.
#include <omp.h>

#include <chrono>
#include <numeric>

#include "bench.h"
#include "bench_routing.h"
#include "spillway/comm/mpi_reference.h"
#include "spillway/core/math.h"
#include "spillway/ep/session.h"
#include "spillway/plan/sizing.h"
#include "spillway/train/run_options.h"
#include "spillway/train/step_timer.h"

namespace spillway::bench {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

ep::EpConfig make_config(const EpOptions& o, const comm::Communicator& world) {
  ep::EpConfig config{.ep = world.size(),
                      .num_experts = o.experts,
                      .hidden = o.hidden,
                      .top_k = o.top_k,
                      .alignment = o.alignment,
                      .dtype = o.dtype == "bf16" ? DType::kBF16 : DType::kF32,
                      .max_tokens_per_rank = o.tokens};
  config.recv_capacity_per_rank = {
      plan::worst_case_slots(config.ep * o.tokens, o.top_k, o.experts / config.ep, o.alignment)};
  return config;
}

void check_options(const EpOptions& o, const comm::Communicator& world) {
  if (world.size() < 2) {
    throw train::SharedError("bench ep: started on 1 rank; allowed: 2 or more (mpirun -n 4 ...)",
                             ExitCode::kConfig);
  }
  if (o.experts % world.size() != 0) {
    throw train::SharedError(str("bench ep: --experts is ", o.experts,
                                 "; allowed: a multiple of the ", world.size(), " ranks"),
                             ExitCode::kConfig);
  }
  if (!is_power_of_two(o.alignment)) {
    throw train::SharedError(
        str("bench ep: --alignment is ", o.alignment, "; allowed: a power of two"),
        ExitCode::kConfig);
  }
  if (o.top_k > o.experts) {
    throw train::SharedError(
        str("bench ep: --top-k is ", o.top_k, "; allowed: at most --experts = ", o.experts),
        ExitCode::kConfig);
  }
}

// A rank's batch: small integers, so that the sum of K copies is exact in bf16 too.
struct Batch {
  Batch(Context& ctx, const EpOptions& o, DType dtype, int rank)
      : topk_idx(random_routing(ctx, o.tokens, o.top_k, o.experts, 0.0, o.seed,
                                static_cast<uint64_t>(rank))),
        gate(Tensor::empty(ctx, {o.tokens, o.top_k}, DType::kF32)),
        tokens(Tensor::empty(ctx, {o.tokens, o.hidden}, dtype)) {
    std::fill_n(gate.data<float>(), gate.numel(), 1.0F / static_cast<float>(o.top_k));
    for (int64_t i = 0; i < tokens.numel(); ++i) set(tokens, i, value(i));
  }
  static float value(int64_t i) { return static_cast<float>((i * 7 + i / 1024) % 8); }
  static void set(Tensor& x, int64_t i, float to) {
    if (x.dtype() == DType::kF32) {
      x.data<float>()[i] = to;
    } else {
      x.data<bf16>()[i] = bf16(to);
    }
  }
  static float get(const Tensor& x, int64_t i) {
    return x.dtype() == DType::kF32 ? x.data<float>()[i] : static_cast<float>(x.data<bf16>()[i]);
  }

  Tensor topk_idx, gate, tokens;
};

struct Times {
  std::vector<double> total, prepare, dispatch, combine, reference;
};

// What the reference moves, of this rank: for each peer, rows with their gates there, rows back.
struct Traffic {
  Traffic(const ep::RoutingHandle& handle, int rank, int64_t row_bytes, int64_t gate_bytes) {
    const size_t experts_per_rank = handle.token_counts.size();
    for (int peer = 0; peer < static_cast<int>(handle.header.ep); ++peer) {
      const auto rows = [&](const std::vector<int64_t>& counts) {
        const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(peer) *
                                                                        experts_per_rank);
        return peer == rank
                   ? 0
                   : std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(experts_per_rank),
                                     int64_t{0});
      };
      send_there.push_back(rows(handle.send_counts) * (row_bytes + gate_bytes));
      recv_there.push_back(rows(handle.recv_counts) * (row_bytes + gate_bytes));
      send_back.push_back(rows(handle.recv_counts) * row_bytes);
      recv_back.push_back(rows(handle.send_counts) * row_bytes);
    }
  }
  static int64_t sum(const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  }

  std::vector<int64_t> send_there, recv_there, send_back, recv_back;
};

class EpBench {
 public:
  EpBench(const EpOptions& options, comm::Communicator& world)
      : options_(options),
        world_(world),
        ctx_(Device::kCpu, omp_get_max_threads()),
        topology_(world, world.size()),
        session_(ctx_, topology_),
        config_(make_config(options, world)),
        batch_(ctx_, options, config_.dtype, world.rank()) {
    session_.bootstrap(config_);
  }

  Json run() {
    const Traffic traffic = make_traffic();
    std::vector<std::byte> there(static_cast<size_t>(Traffic::sum(traffic.send_there)));
    std::vector<std::byte> here(static_cast<size_t>(Traffic::sum(traffic.recv_there)));
    const int64_t rounds = options_.warmup + options_.repeat;
    Times times;
    for (int64_t i = 0; i < rounds; ++i) {
      if (i == options_.warmup) times = {};
      time_ours(times);
      world_.barrier();
      const Clock::time_point start = Clock::now();
      comm::all_to_all_v(world_, there.data(), traffic.send_there, here.data(), traffic.recv_there);
      comm::all_to_all_v(world_, here.data(), traffic.send_back, there.data(), traffic.recv_back);
      times.reference.push_back(highest(ms_since(start)));
    }
    return line(times, traffic);
  }

 private:
  // The routing is the same in every round.
  Traffic make_traffic() {
    const ep::PrepareResult prepared = session_.prepare(args());
    const int64_t row_bytes = options_.hidden * dtype_bytes(config_.dtype);
    return {prepared.handle, world_.rank(), row_bytes, dtype_bytes(batch_.gate.dtype())};
  }

  ep::PrepareArgs args() const { return {.topk_idx = batch_.topk_idx, .gate = batch_.gate}; }

  // Of the slowest rank.
  double highest(double mine) {
    std::vector<double> all(static_cast<size_t>(world_.size()));
    world_.all_gather(&mine, all.data(), sizeof(double));
    return *std::max_element(all.begin(), all.end());
  }

  void time_ours(Times& times) {
    world_.barrier();
    const Clock::time_point start = Clock::now();
    const ep::PrepareResult prepared = session_.prepare(args());
    const double prepare = ms_since(start);
    const ep::DispatchResult received =
        session_.dispatch(prepared.handle, {}, batch_.tokens, batch_.gate);
    const double dispatch = ms_since(start);
    const Tensor out = session_.combine(prepared.handle, {}, received.recv_tokens);
    const double combine = ms_since(start);
    if (times.total.empty()) check(out);
    times.total.push_back(highest(combine));
    times.prepare.push_back(highest(prepare));
    times.dispatch.push_back(highest(dispatch - prepare));
    times.combine.push_back(highest(combine - dispatch));
  }

  void check(const Tensor& out) const {
    for (int64_t i = 0; i < out.numel(); ++i) {
      const float expected = static_cast<float>(options_.top_k) * Batch::value(i);
      const float found = Batch::get(out, i);
      SPILLWAY_CHECK(found == expected, "bench ep: element ", i, " of the output is ", found,
                     ", expected ", expected);
    }
  }

  Json line(const Times& times, const Traffic& traffic) {
    const auto median = [](const std::vector<double>& ms) { return train::spread(ms).median; };
    const auto world_sum = [&](const std::vector<int64_t>& bytes) {
      const int64_t mine = Traffic::sum(bytes);
      std::vector<int64_t> all(static_cast<size_t>(world_.size()));
      world_.all_gather(&mine, all.data(), sizeof(int64_t));
      return Traffic::sum(all);
    };
    return {{"bench", "ep"},
            {"tokens", options_.tokens},
            {"hidden", options_.hidden},
            {"top_k", options_.top_k},
            {"experts", options_.experts},
            {"alignment", options_.alignment},
            {"dtype", options_.dtype},
            {"seed", options_.seed},
            {"world", world_.size()},
            {"threads", ctx_.num_threads()},
            {"cpu", train::cpu_model()},
            {"bytes_there", world_sum(traffic.send_there)},  // of all ranks
            {"bytes_back", world_sum(traffic.send_back)},
            {"ms", spread_json(times.total)},
            {"prepare_ms", median(times.prepare)},
            {"dispatch_ms", median(times.dispatch)},
            {"combine_ms", median(times.combine)},
            {"alltoallv_ms", spread_json(times.reference)},
            {"ratio", median(times.total) / median(times.reference)}};
  }

  const EpOptions& options_;
  comm::Communicator& world_;
  Context ctx_;
  comm::Topology topology_;
  ep::Session session_;
  ep::EpConfig config_;
  Batch batch_;
};

}  // namespace

Json time_ep(const EpOptions& options, comm::Communicator& world) {
  check_options(options, world);
  return EpBench(options, world).run();
}

}  // namespace spillway::bench
