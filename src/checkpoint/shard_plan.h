#pragma once

#include <cstdint>
#include <vector>

#include "spillway/checkpoint/tensor_names.h"

namespace spillway::checkpoint {

/// The rank that writes each tensor, the same on every rank: an expert goes to a rank that holds
/// it, another tensor to any; the largest first, each to the rank with the least to write so far.
std::vector<int64_t> assign_ranks(const std::vector<FileTensor>& tensors, int64_t num_experts,
                                  int64_t world, int64_t ep);

}  // namespace spillway::checkpoint
