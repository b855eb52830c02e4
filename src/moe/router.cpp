#include "spillway/moe/router.h"

#include "spillway/ops/linear.h"
#include "spillway/ops/save_names.h"

namespace spillway::moe {

void Router::append_specs(const MoeConfig& config, int64_t hidden, const std::string& prefix,
                          DType dtype, std::vector<nn::ParameterSpec>& specs) {
  specs.push_back(
      {.name = prefix + "gate.weight", .shape = {config.experts, hidden}, .dtype = dtype});
}

Router::Router(const MoeConfig& config, const std::string& prefix, nn::ParameterStore& store)
    : config_(config), weight_(store.at(prefix + "gate.weight").variable) {}

ops::RouteResult Router::operator()(Tape& tape, const Variable& x, double cell_scale,
                                    double token_scale) const {
  const RouterConfig& router = config_.router;
  const Variable logits =
      ops::linear(tape, x, weight_, accumulator_dtype(x.dtype()), ops::kSaveRouter);
  return ops::route(tape, logits,
                    {.routing = {.softmax_before_topk = router.softmax_before_topk,
                                 .normalize_topk = router.normalize_topk,
                                 .scale = router.scale},
                     .top_k = config_.top_k,
                     .force_balanced = router.force == ForceRouting::kBalanced,
                     .cell_scale = cell_scale,
                     .token_scale = token_scale});
}

}  // namespace spillway::moe
