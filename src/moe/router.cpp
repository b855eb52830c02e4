#include "spillway/moe/router.h"

#include "spillway/ops/linear.h"
#include "spillway/ops/save_names.h"

namespace spillway::moe {

void Router::append_specs(const MoeConfig& config, int64_t hidden, const std::string& prefix,
                          DType dtype, std::vector<nn::ParameterSpec>& specs) {
  specs.push_back(
      {.name = prefix + "gate.weight", .shape = {config.experts, hidden}, .dtype = dtype});
}

Router::Router(Context& ctx, const MoeConfig& config, const std::string& prefix,
               nn::ParameterStore& store)
    : config_(config), weight_(store.at(prefix + "gate.weight").variable) {
  if (config.router.bias_update_rate > 0.0) {
    selection_bias_ = Tensor::zeros(ctx, {config.experts}, DType::kF32, Purpose::kWeights);
  }
}

ops::RouteResult Router::operator()(Tape& tape, const Variable& x, const RouterCall& call) const {
  const RouterConfig& router = config_.router;
  const Variable logits =
      ops::linear(tape, x, weight_, accumulator_dtype(x.dtype()), ops::kSaveRouter);
  return ops::route(tape, logits,
                    {.routing = {.score = router.score,
                                 .softmax_before_topk = router.softmax_before_topk,
                                 .normalize_topk = router.normalize_topk,
                                 .scale = router.scale,
                                 .groups = router.groups,
                                 .topk_groups = router.topk_groups},
                     .top_k = config_.top_k,
                     .bias = selection_bias_,
                     .force_balanced = router.force == ForceRouting::kBalanced,
                     .aux_loss = router.aux_loss,
                     .seq = call.seq,
                     .world = call.world,
                     .cell_scale = call.cell_scale,
                     .token_scale = call.token_scale});
}

}  // namespace spillway::moe
