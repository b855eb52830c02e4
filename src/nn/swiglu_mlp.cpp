#include "spillway/nn/swiglu_mlp.h"

#include "spillway/ops/linear.h"
#include "spillway/ops/swiglu.h"

namespace spillway::nn {

void SwigluMlp::append_specs(int64_t hidden, int64_t ffn, double out_init_std,
                             const std::string& prefix, DType dtype,
                             std::vector<ParameterSpec>& specs) {
  specs.push_back(
      {.name = prefix + "gate_up_proj.weight", .shape = {2 * ffn, hidden}, .dtype = dtype});
  specs.push_back({.name = prefix + "down_proj.weight",
                   .shape = {hidden, ffn},
                   .dtype = dtype,
                   .init = {.kind = Init::Kind::kNormal, .std = out_init_std}});
}

SwigluMlp::SwigluMlp(const std::string& prefix, ParameterStore& store)
    : gate_up_(store.at(prefix + "gate_up_proj.weight").variable),
      down_(store.at(prefix + "down_proj.weight").variable) {}

Variable SwigluMlp::operator()(Tape& tape, const Variable& x) const {
  const Variable up = ops::linear(tape, x, gate_up_);
  const Variable act = ops::swiglu(tape, up, {}, ops::all_rows(x.dim(0)));
  return ops::linear(tape, act, down_);
}

}  // namespace spillway::nn
