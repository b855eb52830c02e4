// Expert parallelism without the rest of Spillway: rows go to experts that you write, and back, and
// so do their gradients. Start it on any number of ranks:
//
//   mpirun -n 4 build/bin/ep_library_example
//
// A first step has too little room and drops; then the buffers get the size of the demand.
//
// Each rank owns two experts. Expert e gives (e + 1) times a row times its gate, so that the right
// answer is known: out[t] = x[t] * sum over k of gate[t,k] * (expert[t,k] + 1).

#include <algorithm>
#include <iostream>
#include <numeric>

#include "spillway/comm/mpi_runtime.h"
#include "spillway/ep/session.h"
#include "spillway/plan/sizing.h"

namespace {

using namespace spillway;

constexpr int64_t kTokens = 64, kHidden = 16, kTopK = 2, kExpertsPerRank = 2, kAlignment = 8;

// What a rank brings: tokens, and what its router chose for them. Every value is a small integer or
// a half, so all sums below are exact.
struct Batch {
  Tensor tokens;    // [T,H]
  Tensor topk_idx;  // [T,K] global expert ids, distinct in a token
  Tensor gate;      // [T,K]

  Batch(Context& ctx, int64_t rank, int64_t num_experts)
      : tokens(Tensor::empty(ctx, {kTokens, kHidden}, DType::kF32)),
        topk_idx(Tensor::empty(ctx, {kTokens, kTopK}, DType::kI32)),
        gate(Tensor::empty(ctx, {kTokens, kTopK}, DType::kF32)) {
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      tokens.data<float>()[i] = static_cast<float>((rank + i) % 7);
    }
    for (int64_t t = 0; t < kTokens; ++t) {  // every second token chooses experts 0 and 1
      const int64_t first = t % 2 == 0 ? 0 : (rank + t) % num_experts;
      for (int64_t k = 0; k < kTopK; ++k) {
        topk_idx.data<int32_t>()[t * kTopK + k] = static_cast<int32_t>((first + k) % num_experts);
        gate.data<float>()[t * kTopK + k] = k == 0 ? 1.0F : 0.5F;
      }
    }
  }
};

// Your experts: rows of zone e of a receive buffer belong to the local expert e.
struct Experts {
  Context& ctx;
  int64_t first;  // global id of the first one here

  template <typename Row>
  void for_each_row(const ep::PrepareResult& plan, Row&& row) const {
    int64_t begin = 0;
    for (int64_t local = 0; local < kExpertsPerRank; ++local) {
      const auto zone = static_cast<size_t>(local);
      for (int64_t i = 0; i < plan.token_counts[zone]; ++i) {
        row(begin + i, static_cast<float>(first + local + 1));
      }
      begin += plan.slot_counts[zone];  // the rest of a zone is padding
    }
  }

  Tensor forward(const ep::PrepareResult& plan, const ep::DispatchResult& received) const {
    Tensor out = Tensor::empty(ctx, received.recv_tokens.shape(), DType::kF32);
    for_each_row(plan, [&](int64_t slot, float factor) {
      const float* x = received.recv_tokens.data<float>() + slot * kHidden;
      const float scale = factor * received.recv_gate.data<float>()[slot];
      for (int64_t h = 0; h < kHidden; ++h) out.data<float>()[slot * kHidden + h] = scale * x[h];
    });
    return out;
  }

  // The gradients of the received rows and of their gates.
  ep::DispatchResult backward(const ep::PrepareResult& plan, const ep::DispatchResult& received,
                              const Tensor& d_out) const {
    ep::DispatchResult d{Tensor::empty(ctx, d_out.shape(), DType::kF32),
                         Tensor::empty(ctx, received.recv_gate.shape(), DType::kF32)};
    for_each_row(plan, [&](int64_t slot, float factor) {
      const float* x = received.recv_tokens.data<float>() + slot * kHidden;
      const float* dy = d_out.data<float>() + slot * kHidden;
      const float scale = factor * received.recv_gate.data<float>()[slot];
      float dot = 0.0F;
      for (int64_t h = 0; h < kHidden; ++h) {
        d.recv_tokens.data<float>()[slot * kHidden + h] = scale * dy[h];
        dot += x[h] * dy[h];
      }
      d.recv_gate.data<float>()[slot] = factor * dot;
    });
    return d;
  }
};

// Entries that are wrong for a loss of sum(out): with nothing dropped, there are none.
int64_t count_wrong(const Batch& batch, const Tensor& out, const ep::DispatchBackwardResult& d) {
  int64_t wrong = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const float* x = batch.tokens.data<float>() + t * kHidden;
    float factor = 0.0F, sum_x = 0.0F;
    for (int64_t h = 0; h < kHidden; ++h) sum_x += x[h];
    for (int64_t i = t * kTopK; i < (t + 1) * kTopK; ++i) {
      const auto expert = static_cast<float>(batch.topk_idx.data<int32_t>()[i] + 1);
      factor += batch.gate.data<float>()[i] * expert;
      wrong += d.d_gate.data<float>()[i] != expert * sum_x;
    }
    for (int64_t h = 0; h < kHidden; ++h) {
      wrong += out.data<float>()[t * kHidden + h] != factor * x[h];
      wrong += d.dx.data<float>()[t * kHidden + h] != factor;
    }
  }
  return wrong;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Of a step: prints what happened on rank 0; true when that is what must happen.
bool report(comm::Communicator& world, const ep::Ledger& ledger, int64_t wrong_here) {
  std::vector<int64_t> wrong(static_cast<size_t>(world.size()));
  world.all_gather(&wrong_here, wrong.data(), sizeof(wrong_here));
  const int64_t dropped = sum(ledger.dropped_assignments), routed = sum(ledger.recv_assignments);
  const int64_t delivered = sum(ledger.slot_counts_sum) - sum(ledger.padding_slots);
  if (world.rank() == 0) {
    std::cout << "capacity " << ledger.capacity_end << " slots a rank, demand";
    for (const int64_t demand : ledger.total_recv_tokens) std::cout << " " << demand;
    std::cout << " slots; dropped " << dropped << " of " << routed << " assignments; " << sum(wrong)
              << " wrong entries\n";
  }
  // Without drops the result is exact; with drops it lacks just those.
  return delivered + dropped == routed && (dropped > 0) == (sum(wrong) > 0);
}

// Room for a balanced load. It is too little for rank 0, which owns the experts that half of the
// tokens choose.
ep::EpConfig make_config(int64_t ep) {
  ep::EpConfig config{.ep = ep,
                      .num_experts = ep * kExpertsPerRank,
                      .hidden = kHidden,
                      .top_k = kTopK,
                      .alignment = kAlignment,
                      .max_tokens_per_rank = kTokens,
                      .drop_on_overflow = true};
  config.recv_capacity_per_rank = {
      plan::balanced_slots(ep * kTokens, kTopK, config.num_experts, kExpertsPerRank, kAlignment)};
  return config;
}

// True when every step went as it must.
bool run(comm::Communicator& world) {
  Context ctx;
  ep::EpConfig config = make_config(world.size());
  const Batch batch(ctx, world.rank(), config.num_experts);
  const Experts experts{ctx, world.rank() * kExpertsPerRank};
  Tensor d_out = Tensor::empty(ctx, batch.tokens.shape(), DType::kF32);  // of the loss sum(out)
  std::fill_n(d_out.data<float>(), d_out.numel(), 1.0F);
  bool good = true;
  // The library: begin
  comm::Topology topology(world, world.size());  // one EP group of all ranks
  ep::Session session(ctx, topology);
  session.bootstrap(config);
  for (const int64_t step : {0, 1}) {
    const ep::Call call{.layer = 0, .micro_batch = 0, .step = step};
    ep::PrepareResult plan = session.prepare({call, batch.topk_idx, batch.gate});
    ep::DispatchResult received = session.dispatch(plan.handle, call, batch.tokens, batch.gate);
    Tensor out = session.combine(plan.handle, call, experts.forward(plan, received));

    Tensor d_expert_out = session.combine_backward(plan.handle, call, d_out);
    ep::DispatchResult d = experts.backward(plan, received, d_expert_out);
    ep::DispatchBackwardResult grads =
        session.dispatch_backward(plan.handle, call, d.recv_tokens, d.recv_gate);

    good = report(world, plan.ledger, count_wrong(batch, out, grads)) && good;
    config.recv_capacity_per_rank = {std::ranges::max(plan.ledger.total_recv_tokens)};
    plan.handle = {};  // no handle may be alive while buffers change
    session.reconfigure(config, ep::ReconfigureMode::kBuffers);
  }
  // The library: end
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  comm::MpiRuntime mpi(&argc, &argv);
  try {
    return run(*comm::make_mpi_world()) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    mpi.abort(1);
  }
}
