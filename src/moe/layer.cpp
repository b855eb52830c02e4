#include "spillway/moe/layer.h"

#include "spillway/ops/basic.h"
#include "spillway/ops/dispatch.h"

namespace spillway::moe {

void MoeLayer::append_specs(const MoeConfig& config, int64_t hidden, double out_init_std,
                            const std::string& prefix, DType dtype,
                            std::vector<nn::ParameterSpec>& specs) {
  Router::append_specs(config, hidden, prefix, dtype, specs);
  Experts::append_specs(config, hidden, out_init_std, prefix + "experts.", dtype, specs);
  if (config.shared_experts > 0) {
    nn::SwigluMlp::append_specs(hidden, config.shared_experts * config.ffn, out_init_std,
                                prefix + "shared_experts.", dtype, specs);
  }
}

MoeLayer::MoeLayer(Context& ctx, const MoeConfig& config, int64_t moe_layer,
                   const std::string& prefix, nn::ParameterStore& store)
    : moe_layer_(moe_layer),
      router_(ctx, config, prefix, store),
      experts_(prefix + "experts.", store) {
  if (config.shared_experts > 0) shared_.emplace(prefix + "shared_experts.", store);
}

MoeOutput MoeLayer::operator()(Tape& tape, const Variable& x, const MoeCall& call) const {
  const ops::RouteResult routed = router_(tape, x,
                                          {.cell_scale = call.cell_scale,
                                           .token_scale = call.token_scale,
                                           .seq = call.seq,
                                           .world = call.world});
  const ep::Call ep_call{.layer = moe_layer_, .micro_batch = call.micro_batch, .step = call.step};
  const ops::DispatchOutput sent = ops::dispatch(
      tape, call.session, {.call = ep_call, .sizing = call.sizing, .fused = call.fused}, x,
      routed.topk_idx, routed.gate);
  if (call.records != nullptr && !tape.recomputing()) {
    call.records->push_back({.moe_layer = moe_layer_,
                             .micro_batch = call.micro_batch,
                             .ledger = sent.prepare.ledger,
                             .aux_loss = ops::scalar_value(routed.aux_loss.value()),
                             .z_loss = ops::scalar_value(routed.z_loss.value())});
  }
  if (call.choices != nullptr && !tape.recomputing()) call.choices->push_back(routed.topk_idx);
  if (call.logits != nullptr && !tape.recomputing()) call.logits->push_back(routed.logits);
  const Variable expert_out = experts_(tape, sent.recv_tokens, sent.recv_gate, sent.zones);
  Variable out = ops::combine(tape, call.session, sent.prepare.handle, ep_call, expert_out);
  if (shared_) out = ops::add(tape, out, (*shared_)(tape, x));
  return {out, routed.aux_loss, routed.z_loss};
}

}  // namespace spillway::moe
