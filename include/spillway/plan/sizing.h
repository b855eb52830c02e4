#pragma once
// How many slots a rank's receive buffer needs: the largest demand that any routing can cause, the
// demand of perfectly balanced routing, and the clamp that every policy's capacity goes through.
//
// All sizes are in slots (rows of the receive buffer). N is the number of tokens of the whole EP
// group in one micro-batch, K = top_k, E = experts of the layer, L = E / ep = experts per rank,
// A = alignment (a power of two; 1 = no padding).

#include <cstdint>

namespace spillway::plan {

/// The largest demand of one rank over all routings of N tokens in which the expert ids of a token
/// are distinct: min(L * roundup(N, A), rounddown(B + (A - 1) * min(L, B), A)), B = N * min(K, L).
/// Exact: some routing reaches it. A multiple of A; 0 when N is 0.
/// Throws when an argument is negative, L is 0 or A is no power of two.
int64_t worst_case_slots(int64_t num_tokens_N, int64_t top_k, int64_t experts_per_rank,
                         int64_t alignment);

/// The demand of one rank when every expert gets the same load, never more than the worst case:
/// min(L * roundup(ceil(N * K / E), A), worst_case_slots). A multiple of A. Throws as above, and
/// when E < L.
int64_t balanced_slots(int64_t num_tokens_N, int64_t top_k, int64_t num_experts,
                       int64_t experts_per_rank, int64_t alignment);

/// `slots` rounded up to A and brought into [max(A, roundup(min_slots, A)), worst_case]; where the
/// two bounds cross, worst_case wins (no routing can use more). Throws unless worst_case is a
/// multiple of A.
int64_t clamp_capacity(int64_t slots, int64_t min_slots, int64_t worst_case, int64_t alignment);

}  // namespace spillway::plan
