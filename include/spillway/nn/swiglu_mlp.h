#pragma once

#include <string>
#include <vector>

#include "spillway/autograd/tape.h"
#include "spillway/nn/parameter.h"

namespace spillway::nn {

using autograd::Tape;
using autograd::Variable;

/// A dense SwiGLU network: down(silu(gate x) * up x). Parameters gate_up_proj [2F,H] (gate rows
/// first) and down_proj [H,F].
class SwigluMlp {
 public:
  static void append_specs(int64_t hidden, int64_t ffn, double out_init_std,
                           const std::string& prefix, DType dtype,
                           std::vector<ParameterSpec>& specs);
  SwigluMlp(const std::string& prefix, ParameterStore& store);

  /// x [T,H] -> [T,H].
  Variable operator()(Tape& tape, const Variable& x) const;

 private:
  Variable gate_up_, down_;
};

}  // namespace spillway::nn
