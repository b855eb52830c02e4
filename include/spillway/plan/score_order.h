#pragma once
// The order kScore: by gate, highest first. Gates stay with their sources, so what a rank keeps is
// decided from two exchanged histograms, one of the high and one of the low byte of the keys.
//
// Key of a gate: 16 bits made of its bf16 rounding so that a smaller key is kept first and equal
// roundings have equal keys; equal keys are in tail order. L = experts per rank, S = ep.

#include <cstdint>
#include <span>

#include "spillway/plan/count_matrix.h"
#include "spillway/plan/rank_plan.h"

namespace spillway::plan {

inline constexpr int64_t kScoreBins = 256;

/// `coarse` [S, L, 256], source-major: assignments of each (source, local expert) of `rank` by the
/// high byte of the key. Returns the high byte at which the longest prefix ends: all rows with a
/// smaller one fit, those and all with this one do not. Throws on what plan_rank throws on, on a
/// rank that does not overflow, and on bins that do not add up to the count matrix.
/// O(S * L * 256).
int64_t score_boundary(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                       std::span<const int32_t> coarse);

/// `fine` [S, L, 256]: of the assignments whose high byte is `boundary`, by the low byte. Returns
/// what the rank keeps, with `cut` a key of 16 bits. Throws as above, and on a boundary that is
/// not the one of `coarse`.
KeptRows keep_by_score(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                       std::span<const int32_t> coarse, int64_t boundary,
                       std::span<const int32_t> fine);

}  // namespace spillway::plan
