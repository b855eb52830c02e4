#include "score_bins.h"

#include "no_index.h"

namespace spillway::kernels::cpu {
namespace {

template <typename T>
void count_keys(const ScoreBinsArgs& args) {
  const int32_t* ids = args.topk_idx.data<int32_t>();
  const T* gate = args.gate.data<T>();
  int32_t* bins = args.bins.data<int32_t>();
  const auto num_experts = static_cast<int32_t>(args.rows.size());
  for (int64_t i = 0; i < args.topk_idx.numel(); ++i) {
    const int32_t id = ids[i];
    if (id == kNoExpert) continue;
    SPILLWAY_CHECK(id >= 0 && id < num_experts, "score_bins: expert id ", id, " at position ", i,
                   ", it must be in [-1, ", num_experts, ")");
    const ScoreBinRow& row = args.rows[static_cast<size_t>(id)];
    if (row.row < 0) continue;
    const int32_t key = score_key(gate[i]);
    const int32_t high = key / kScoreBins, low = key % kScoreBins;
    if (row.boundary >= 0 && row.boundary != high) continue;
    ++bins[row.row * kScoreBins + (row.boundary < 0 ? high : low)];
  }
}

}  // namespace

void score_bins(Context&, const ScoreBinsArgs& args) {
  args.bins.zero();
  if (args.topk_idx.numel() == 0) return;
  if (args.gate.dtype() == DType::kF64) {
    count_keys<double>(args);
  } else {
    count_keys<float>(args);
  }
}

}  // namespace spillway::kernels::cpu
