#include "spillway/ops/route.h"

#include "spillway/ops/basic.h"

namespace spillway::ops {

using autograd::Backward;

namespace {

Tensor balanced_choice(Context& ctx, int64_t num_tokens, int64_t top_k, int64_t num_experts) {
  Tensor topk_idx = Tensor::empty(ctx, {num_tokens, top_k}, DType::kI32);
  int32_t* const ids = topk_idx.data<int32_t>();
  for (int64_t i = 0; i < topk_idx.numel(); ++i) ids[i] = static_cast<int32_t>(i % num_experts);
  return topk_idx;
}

/// A balance term that is linear in the probabilities: sum over tokens and experts of
/// slope[t / span, e] * probs[t, e].
struct BalanceTerm {
  Tensor slope;  // f64 [spans, E]; undefined: no term
  int64_t span = 1;
};

/// slope = factor * count, one row.
void fill_slope(const Tensor& counts, double factor, double* slope) {
  const int64_t* const c = counts.data<int64_t>();
  for (int64_t e = 0; e < counts.numel(); ++e) slope[e] = factor * static_cast<double>(c[e]);
}

/// [E+1]: assignments of each expert and the number of tokens, over all ranks. Sums in f64: exact
/// below 2^53.
Tensor sum_over_ranks(Context& ctx, const Tensor& counts, int64_t num_tokens,
                      comm::Communicator* world) {
  const int64_t num_experts = counts.numel();
  Tensor sums = Tensor::empty(ctx, {num_experts + 1}, DType::kF64);
  fill_slope(counts, 1.0, sums.data<double>());
  sums.data<double>()[num_experts] = static_cast<double>(num_tokens);
  if (world != nullptr) world->all_reduce_sum(ctx, sums);
  return sums;
}

BalanceTerm balance_term(Tape& tape, const Tensor& topk_idx, int64_t num_experts,
                         const RouteOptions& options) {
  Context& ctx = tape.ctx();
  const int64_t num_tokens = topk_idx.dim(0);
  const double per_choice = static_cast<double>(num_experts) / static_cast<double>(options.top_k);
  if (options.aux_loss == AuxLoss::kNone) return {};
  Tensor counts = Tensor::empty(ctx, {num_experts}, DType::kI64);
  if (options.aux_loss == AuxLoss::kSequence) {
    SPILLWAY_CHECK(options.seq >= 1 && num_tokens % options.seq == 0, "route: ", num_tokens,
                   " tokens in sequences of ", options.seq, ", it must be a divisor");
    const double factor = options.token_scale * per_choice / static_cast<double>(options.seq);
    const int64_t sequences = num_tokens / options.seq;
    Tensor slope = Tensor::empty(ctx, {sequences, num_experts}, DType::kF64);
    for (int64_t s = 0; s < sequences; ++s) {
      kernels::count_experts(ctx, topk_idx.rows(s * options.seq, (s + 1) * options.seq), counts);
      fill_slope(counts, factor, slope.data<double>() + s * num_experts);
    }
    return {slope, options.seq};
  }
  kernels::count_experts(ctx, topk_idx, counts);
  const bool global = options.aux_loss == AuxLoss::kGlobal;
  // The collective comes before any rank may leave.
  Tensor sums;
  if (global) {
    sums = tape.saved(Tape::kAlwaysSaved,
                      [&] { return sum_over_ranks(ctx, counts, num_tokens, options.world); });
  }
  if (num_tokens == 0) return {};
  Tensor slope = Tensor::empty(ctx, {1, num_experts}, DType::kF64);
  const double n = static_cast<double>(num_tokens);
  if (!global) {
    fill_slope(counts, options.cell_scale * per_choice / (n * n), slope.data<double>());
    return {slope, num_tokens};
  }
  const double factor = options.token_scale * per_choice / sums.data<double>()[num_experts];
  for (int64_t e = 0; e < num_experts; ++e) {
    slope.data<double>()[e] = factor * sums.data<double>()[e];
  }
  return {slope, num_tokens};
}

double balance_loss(Context& ctx, const BalanceTerm& term, const Tensor& probs) {
  if (!term.slope.defined()) return 0.0;
  const int64_t num_experts = probs.dim(1);
  Tensor prob_sums = Tensor::empty(ctx, {num_experts}, DType::kF64);
  double loss = 0.0;
  for (int64_t s = 0; s < term.slope.dim(0); ++s) {
    kernels::column_sums(ctx, probs.rows(s * term.span, (s + 1) * term.span), prob_sums);
    const double* const slope = term.slope.data<double>() + s * num_experts;
    for (int64_t e = 0; e < num_experts; ++e) loss += slope[e] * prob_sums.data<double>()[e];
  }
  return loss;
}

/// The gradient of the term by the probabilities [T,E].
Tensor balance_gradient(Context& ctx, const BalanceTerm& term, double upstream, const Shape& shape,
                        DType dtype) {
  const int64_t num_experts = shape[1];
  Tensor d_probs = Tensor::empty(ctx, shape, dtype);
  visit_float(dtype, [&]<typename T>() {
    T* const out = d_probs.data<T>();
    for (int64_t t = 0; t < shape[0]; ++t) {
      const double* const slope = term.slope.data<double>() + t / term.span * num_experts;
      for (int64_t e = 0; e < num_experts; ++e) {
        out[t * num_experts + e] = T(static_cast<acc_t<T>>(upstream * slope[e]));
      }
    }
  });
  return d_probs;
}

/// The experts of each token and their weights; fills `probs`.
std::pair<Tensor, Tensor> choose(Context& ctx, const Tensor& logits, const RouteOptions& options,
                                 Tensor& probs) {
  const int64_t num_tokens = logits.dim(0), num_experts = logits.dim(1);
  Tensor gate = Tensor::empty(ctx, {num_tokens, options.top_k}, logits.dtype());
  if (options.force_balanced) {
    Tensor dealt = balanced_choice(ctx, num_tokens, options.top_k, num_experts);
    kernels::route_given(ctx, {logits, options.routing, dealt, gate, probs});
    return {dealt, gate};
  }
  Tensor chosen = Tensor::empty(ctx, {num_tokens, options.top_k}, DType::kI32);
  kernels::route(ctx, {.logits = logits,
                       .options = options.routing,
                       .topk_idx = chosen,
                       .gate = gate,
                       .probs = probs,
                       .bias = options.bias});
  return {chosen, gate};
}

}  // namespace

RouteResult route(Tape& tape, const Variable& logits, const RouteOptions& options) {
  Context& ctx = tape.ctx();
  const int64_t num_tokens = logits.dim(0), num_experts = logits.dim(1);
  const DType dtype = logits.dtype();
  Tensor probs = Tensor::empty(ctx, {num_tokens, num_experts}, dtype);
  bool chosen_now = false;
  const auto [topk_idx, gate] = tape.saved(Tape::kAlwaysSaved, [&] {
    chosen_now = true;
    return choose(ctx, logits.value(), options, probs);
  });
  if (!chosen_now) {
    // The weights, too, are those of the first time; only the probabilities are wanted.
    Tensor again = Tensor::empty(ctx, gate.shape(), dtype, Purpose::kWorkspace);
    Tensor ids = topk_idx;
    kernels::route_given(ctx, {logits.value(), options.routing, ids, again, probs});
  }
  const BalanceTerm term = balance_term(tape, topk_idx, num_experts, options);
  const double aux = balance_loss(ctx, term, probs);
  const double z = options.token_scale * kernels::z_loss_sum(ctx, logits.value());

  std::vector<Variable> outputs = tape.record(
      "route", {gate, scalar_tensor(ctx, dtype, aux), scalar_tensor(ctx, dtype, z)}, {logits},
      [logits = logits.value(), topk_idx = topk_idx, gate = gate, probs, term,
       routing = options.routing, token_scale = options.token_scale](Backward& b) {
        Tensor d_gate = b.take_grad(0);
        if (!d_gate.defined()) d_gate = Tensor::zeros(b.ctx(), gate.shape(), gate.dtype());
        Tensor d_probs;
        if (b.grad(1).defined() && term.slope.defined()) {
          d_probs = balance_gradient(b.ctx(), term, scalar_value(b.grad(1)), logits.shape(),
                                     logits.dtype());
        }
        const double z_scale = b.grad(2).defined() ? token_scale * scalar_value(b.grad(2)) : 0.0;
        Tensor dlogits = Tensor::empty(b.ctx(), logits.shape(), logits.dtype());
        kernels::route_backward(b.ctx(), {.d_gate = d_gate,
                                          .d_probs = d_probs,
                                          .logits = logits,
                                          .topk_idx = topk_idx,
                                          .gate = gate,
                                          .probs = probs,
                                          .options = routing,
                                          .z_scale = z_scale,
                                          .dlogits = dlogits});
        b.give(0, std::move(dlogits));
      });
  return {topk_idx, logits.value(), outputs[0], outputs[1], outputs[2]};
}

}  // namespace spillway::ops
