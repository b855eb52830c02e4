#pragma once

#include <span>

#include "spillway/comm/topology.h"
#include "spillway/moe/selection_bias.h"
#include "spillway/nn/parameter.h"

namespace spillway::train {

/// Collective of the world. Compares a checksum of every replicated parameter: dense ones over the
/// world, experts over the dp ranks; and of the selection biases, over the world. Throws CommError
/// naming the parameter and the ranks, on every rank of the group that differs.
void check_replicas(nn::ParameterStore& store, comm::Topology& topology,
                    std::span<const moe::SelectionBias> biases = {});

}  // namespace spillway::train
