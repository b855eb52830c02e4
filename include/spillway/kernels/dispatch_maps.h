#pragma once
// The maps of a routing handle: which of a rank's assignments are kept and which row each is.
//
// T tokens, K experts a token, E experts; R rows go to other ranks, M stay on this one.

#include <cstdint>
#include <span>

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

/// What decides between the assignments to an expert that keeps only a part.
enum class KeepKey {
  kOrdinal,  ///< the number of the assignment among those to its expert, in token order
  kHash,     ///< hash_chain(hash_state, ordinal)
  kScore,    ///< score_key of its gate (score_bins.h)
};

/// The assignments of this rank to one global expert. Host memory: made from the count matrix.
struct ExpertRows {
  int64_t routed = 0;       ///< how many there are
  int64_t kept = 0;         ///< how many of them are kept
  int64_t first_row = 0;    ///< what row_of says of the first kept one; the others follow
  int64_t first_entry = 0;  ///< its entry of send_assignment, or of the local maps when `local`
  bool local = false;       ///< the expert lives on this rank
  bool by_key = false;      ///< false: the first `kept` in token order
  uint64_t cut = 0;         ///< by_key: those with key < cut, and of those with key == cut
  int64_t at_cut = 0;       ///< the first at_cut in token order; `kept` in all
  uint64_t hash_state = 0;
};

/// topk_idx i32 [T,K], ids -1 (none) to E-1, of which expert e has exactly experts[e].routed: what
/// count_experts found in it, which also checked the range. gate [T,K] f32 or f64, read under
/// kScore only. Overwritten: row_of i32 [T,K] (-1: dropped or none), send_assignment i32 [R],
/// local_assignment and local_slot i32 [M], flat indices t*K+k and slots as ep/handle.h says.
/// Among the rows of one expert token order is kept.
struct DispatchMapsArgs {
  const Tensor& topk_idx;
  const Tensor& gate;
  std::span<const ExpertRows> experts;
  KeepKey key = KeepKey::kOrdinal;
  Tensor& row_of;
  Tensor& send_assignment;
  Tensor& local_assignment;
  Tensor& local_slot;
};
/// Throws when the experts' kept rows do not fill the maps, each entry once, or when an index does
/// not fit 31 bits.
void dispatch_maps(Context& ctx, const DispatchMapsArgs& args);

/// What a rank's tokens lost: sums f64 [3] = sum of the gates of all assignments, of those that
/// were dropped (row_of = -1), and the number of tokens that had at least one assignment and lost
/// all. Sums in a fixed order whatever is dropped. `any_dropped` false: only the first is computed,
/// the others are 0.
struct DroppedSumsArgs {
  const Tensor& topk_idx;
  const Tensor& gate;
  const Tensor& row_of;
  bool any_dropped = true;
  Tensor& sums;
};
void dropped_sums(Context& ctx, const DroppedSumsArgs& args);

}  // namespace spillway::kernels
