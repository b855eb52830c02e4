#pragma once
// The receive buffers of a session.

#include <vector>

#include "spillway/ep/session.h"

namespace spillway::ep {

/// Buffers [C,H] that are kept from call to call. Layers of one capacity share them: a buffer that
/// nobody else refers to any more serves the next dispatch or backward, so a region that is
/// computed again holds one where the tape would hold one a layer.
struct Session::Buffers {
  std::vector<Tensor> rows;

  /// Uninitialised [C,H]. `keep`: C is a live capacity, so the buffer will be wanted again.
  Tensor take(Context& ctx, int64_t capacity, const EpConfig& config, bool keep);
  /// Makes sure that there is one free buffer for each of the capacities.
  void reserve(Context& ctx, const std::vector<int64_t>& capacities, const EpConfig& config);
  /// Forgets the buffers whose capacity is none of these; tensors that others hold stay valid.
  void keep_only(const std::vector<int64_t>& capacities);
};

}  // namespace spillway::ep
