#pragma once
// What "none" is in tensors of indices: the same on every device.

#include <cstdint>

namespace spillway::kernels::cpu {

inline constexpr int32_t kNoExpert = -1;  ///< in topk_idx: the router left this place empty
inline constexpr int32_t kNoRow = -1;     ///< in row_of: dropped, or no assignment

}  // namespace spillway::kernels::cpu
