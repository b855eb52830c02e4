#pragma once
// The one exchange of prepare: every rank of the group learns what every other sends to whom.

#include "spillway/comm/topology.h"
#include "spillway/ep/session.h"
#include "spillway/plan/count_matrix.h"

namespace spillway::ep {

struct GroupCounts {
  plan::CountMatrix matrix;
  int64_t num_tokens = 0;  ///< N, sum of T over the group
};

/// One all-gather (none at ep = 1). Bad input on any rank, or ranks in different calls, is an
/// Error with the same text on every rank of the group, naming the rank: none is left waiting.
GroupCounts exchange_counts(Context& ctx, const comm::Topology& topology, const EpConfig& config,
                            const PrepareArgs& args);

}  // namespace spillway::ep
