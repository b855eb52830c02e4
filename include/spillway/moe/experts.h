#pragma once

#include <string>
#include <vector>

#include "spillway/autograd/tape.h"
#include "spillway/moe/config.h"
#include "spillway/nn/parameter.h"
#include "spillway/ops/zones.h"

namespace spillway::moe {

using autograd::Tape;
using autograd::Variable;

/// The routed experts of this rank: SwiGLU networks over the zones of the receive buffer.
/// Parameters gate_up_proj [E,2I,H] (gate rows first) and down_proj [E,H,I], L = E/ep held here.
class Experts {
 public:
  static void append_specs(const MoeConfig& config, int64_t hidden, double out_init_std,
                           const std::string& prefix, DType dtype,
                           std::vector<nn::ParameterSpec>& specs);
  Experts(const std::string& prefix, nn::ParameterStore& store);

  /// recv_tokens [C,H], recv_gate [C] -> [C,H]: each row through its expert, times its weight (the
  /// weight acts before the second product, where a row is narrowest).
  Variable operator()(Tape& tape, const Variable& recv_tokens, const Variable& recv_gate,
                      const ops::ZonesPtr& zones) const;

 private:
  Variable gate_up_, down_;
};

}  // namespace spillway::moe
