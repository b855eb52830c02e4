#pragma once

#include <string>
#include <vector>

#include "spillway/moe/config.h"
#include "spillway/nn/parameter.h"
#include "spillway/ops/route.h"

namespace spillway::moe {

using autograd::Tape;
using autograd::Variable;

/// Scores tokens against experts: logits in fp32 (f64) from a product of the model's dtype with
/// fp32 sums; then choice and weights (ops/route.h).
class Router {
 public:
  static void append_specs(const MoeConfig& config, int64_t hidden, const std::string& prefix,
                           DType dtype, std::vector<nn::ParameterSpec>& specs);
  Router(const MoeConfig& config, const std::string& prefix, nn::ParameterStore& store);

  /// x [T,H]. The scales make the loss terms shares of the step's: see ops::RouteOptions.
  ops::RouteResult operator()(Tape& tape, const Variable& x, double cell_scale,
                              double token_scale) const;

 private:
  MoeConfig config_;
  Variable weight_;  // [E,H]
};

}  // namespace spillway::moe
