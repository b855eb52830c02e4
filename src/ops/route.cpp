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

/// dL/dP_e for every expert, spread over the tokens: the same row [E] for each of the T tokens.
Tensor aux_gradient(Context& ctx, const Tensor& counts, int64_t num_tokens, int64_t top_k,
                    double upstream, DType dtype) {
  const int64_t num_experts = counts.numel();
  Tensor d_probs = Tensor::empty(ctx, {num_tokens, num_experts}, dtype);
  const int64_t* const c = counts.data<int64_t>();
  const double n = static_cast<double>(num_tokens);
  const double factor =
      upstream * static_cast<double>(num_experts) / static_cast<double>(top_k) / (n * n);
  visit_float(dtype, [&]<typename T>() {
    T* const out = d_probs.data<T>();
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t e = 0; e < num_experts; ++e) {
        out[t * num_experts + e] = T(static_cast<acc_t<T>>(factor * static_cast<double>(c[e])));
      }
    }
  });
  return d_probs;
}

double switch_loss(const Tensor& counts, const Tensor& prob_sums, int64_t num_tokens,
                   int64_t top_k) {
  if (num_tokens == 0) return 0.0;
  double sum = 0.0;
  for (int64_t e = 0; e < counts.numel(); ++e) {
    sum += static_cast<double>(counts.data<int64_t>()[e]) * prob_sums.data<double>()[e];
  }
  const double n = static_cast<double>(num_tokens);
  return static_cast<double>(counts.numel()) / static_cast<double>(top_k) * sum / (n * n);
}

}  // namespace

RouteResult route(Tape& tape, const Variable& logits, const RouteOptions& options) {
  Context& ctx = tape.ctx();
  const int64_t num_tokens = logits.dim(0), num_experts = logits.dim(1), top_k = options.top_k;
  const DType dtype = logits.dtype();
  Tensor gate = Tensor::empty(ctx, {num_tokens, top_k}, dtype);
  Tensor probs = Tensor::empty(ctx, {num_tokens, num_experts}, dtype);
  bool chosen_now = false;
  Tensor topk_idx = tape.saved(Tape::kAlwaysSaved, [&] {
    if (options.force_balanced) return balanced_choice(ctx, num_tokens, top_k, num_experts);
    Tensor choice = Tensor::empty(ctx, {num_tokens, top_k}, DType::kI32);
    kernels::route(ctx, {logits.value(), options.routing, choice, gate, probs});
    chosen_now = true;
    return choice;
  });
  if (!chosen_now) {
    kernels::route_given(ctx, {logits.value(), options.routing, topk_idx, gate, probs});
  }
  Tensor counts = Tensor::empty(ctx, {num_experts}, DType::kI64);
  kernels::count_experts(ctx, topk_idx, counts);
  Tensor prob_sums = Tensor::empty(ctx, {num_experts}, DType::kF64);
  kernels::column_sums(ctx, probs, prob_sums);
  const double aux = options.cell_scale * switch_loss(counts, prob_sums, num_tokens, top_k);
  const double z = options.token_scale * kernels::z_loss_sum(ctx, logits.value());

  std::vector<Variable> outputs = tape.record(
      "route", {gate, scalar_tensor(ctx, dtype, aux), scalar_tensor(ctx, dtype, z)}, {logits},
      [logits = logits.value(), topk_idx, gate, probs, counts, options](Backward& b) {
        const int64_t tokens = logits.dim(0);
        Tensor d_gate = b.take_grad(0);
        if (!d_gate.defined()) d_gate = Tensor::zeros(b.ctx(), gate.shape(), gate.dtype());
        Tensor d_probs;
        if (b.grad(1).defined() && tokens > 0) {
          d_probs = aux_gradient(b.ctx(), counts, tokens, options.top_k,
                                 options.cell_scale * scalar_value(b.grad(1)), logits.dtype());
        }
        const double z_scale =
            b.grad(2).defined() ? options.token_scale * scalar_value(b.grad(2)) : 0.0;
        Tensor dlogits = Tensor::empty(b.ctx(), logits.shape(), logits.dtype());
        kernels::route_backward(b.ctx(), {.d_gate = d_gate,
                                          .d_probs = d_probs,
                                          .logits = logits,
                                          .topk_idx = topk_idx,
                                          .gate = gate,
                                          .probs = probs,
                                          .options = options.routing,
                                          .z_scale = z_scale,
                                          .dlogits = dlogits});
        b.give(0, std::move(dlogits));
      });
  return {topk_idx, outputs[0], outputs[1], outputs[2]};
}

}  // namespace spillway::ops
