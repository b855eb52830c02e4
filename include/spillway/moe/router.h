#pragma once

#include <string>
#include <vector>

#include "spillway/moe/config.h"
#include "spillway/nn/parameter.h"
#include "spillway/ops/route.h"

namespace spillway::moe {

using autograd::Tape;
using autograd::Variable;

/// Makes the loss terms shares of the step's: see ops::RouteOptions.
struct RouterCall {
  double cell_scale = 1.0;
  double token_scale = 1.0;
  int64_t seq = 0;
  comm::Communicator* world = nullptr;
};

/// Scores tokens against experts: logits in fp32 (f64) from a product of the model's dtype with
/// fp32 sums; then choice and weights (ops/route.h).
class Router {
 public:
  static void append_specs(const MoeConfig& config, int64_t hidden, const std::string& prefix,
                           DType dtype, std::vector<nn::ParameterSpec>& specs);
  Router(Context& ctx, const MoeConfig& config, const std::string& prefix,
         nn::ParameterStore& store);

  /// x [T,H].
  ops::RouteResult operator()(Tape& tape, const Variable& x, const RouterCall& call) const;

  /// f32 [E], zeros at the start; undefined unless `bias_update_rate` > 0. Copies share it.
  const Tensor& selection_bias() const { return selection_bias_; }

 private:
  MoeConfig config_;
  Variable weight_;  // [E,H]
  Tensor selection_bias_;
};

}  // namespace spillway::moe
