#pragma once
// Histograms of gates in the order of a drop by score: how many assignments of a rank stand before
// a threshold is read from them without moving a gate.

#include <cstdint>
#include <span>

#include "spillway/tensor/tensor.h"

namespace spillway::kernels {

inline constexpr int64_t kScoreBins = 256;

/// Place of a gate in descending order, as 16 bits: a smaller key stands before. The key is that of
/// the gate rounded to bf16 (f64 through f32): positive values from large to small, then zero (of
/// either sign), then negative values, then NaN.
constexpr uint16_t score_key(bf16 gate) {
  constexpr uint32_t kSign = 0x8000U, kInfinity = 0x7f80U;
  const uint32_t bits = gate.bits;
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return 0xffffU;
  if (bits == magnitude || magnitude == 0) return static_cast<uint16_t>(0x7fffU - magnitude);
  return static_cast<uint16_t>(bits);
}
constexpr uint16_t score_key(float gate) { return score_key(bf16(gate)); }
constexpr uint16_t score_key(double gate) { return score_key(static_cast<float>(gate)); }

/// What is counted of an expert's assignments.
struct ScoreBinRow {
  int32_t row = -1;       ///< row of `bins` that counts them; -1: not counted
  int32_t boundary = -1;  ///< -1: all, by the high byte of their key; else those with this high
                          ///< byte, by the low byte
};

/// topk_idx i32 [T,K], ids -1 (none) to E-1; gate [T,K] f32 or f64; rows [E]; bins i32 [R,256],
/// overwritten.
struct ScoreBinsArgs {
  const Tensor& topk_idx;
  const Tensor& gate;
  std::span<const ScoreBinRow> rows;
  Tensor& bins;
};
void score_bins(Context& ctx, const ScoreBinsArgs& args);

}  // namespace spillway::kernels
