#include "spillway/moe/experts.h"

#include "spillway/ops/grouped_linear.h"
#include "spillway/ops/save_names.h"
#include "spillway/ops/swiglu.h"

namespace spillway::moe {

void Experts::append_specs(const MoeConfig& config, int64_t hidden, double out_init_std,
                           const std::string& prefix, DType dtype,
                           std::vector<nn::ParameterSpec>& specs) {
  specs.push_back({.name = prefix + "gate_up_proj",
                   .shape = {config.experts, 2 * config.ffn, hidden},
                   .dtype = dtype,
                   .sync = nn::SyncGroup::kExpert});
  specs.push_back({.name = prefix + "down_proj",
                   .shape = {config.experts, hidden, config.ffn},
                   .dtype = dtype,
                   .sync = nn::SyncGroup::kExpert,
                   .init = {.kind = nn::Init::Kind::kNormal, .std = out_init_std}});
}

Experts::Experts(const std::string& prefix, nn::ParameterStore& store)
    : gate_up_(store.at(prefix + "gate_up_proj").variable),
      down_(store.at(prefix + "down_proj").variable) {}

Variable Experts::operator()(Tape& tape, const Variable& recv_tokens, const Variable& recv_gate,
                             const ops::ZonesPtr& zones) const {
  const Variable up = ops::grouped_linear(tape, recv_tokens, gate_up_, zones, ops::kSaveExpertUp);
  const Variable act = ops::swiglu(tape, up, recv_gate, zones);
  return ops::grouped_linear(tape, act, down_, zones);
}

}  // namespace spillway::moe
