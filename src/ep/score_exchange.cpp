#include "score_exchange.h"

#include <algorithm>

#include "spillway/kernels/score_bins.h"
#include "spillway/plan/score_order.h"

namespace spillway::ep {
namespace {

static_assert(kernels::kScoreBins == plan::kScoreBins);

using Bins = std::vector<int32_t>;

// Histograms of all sources for the experts of the ranks that overflow, O of them.
class ScoreBins {
 public:
  ScoreBins(std::vector<int64_t> ranks, int64_t experts_per_rank, int64_t ep)
      : ranks_(std::move(ranks)), rank_bins_(experts_per_rank * kernels::kScoreBins), ep_(ep) {}

  // `boundaries` [O]: of each rank, or -1 for the coarse bins.
  void exchange(Context& ctx, comm::Communicator& group, const PrepareArgs& args,
                const std::vector<int64_t>& boundaries, int64_t num_experts) {
    const auto num_ranks = static_cast<int64_t>(ranks_.size());
    const int64_t experts_per_rank = rank_bins_ / kernels::kScoreBins;
    std::vector<kernels::ScoreBinRow> rows(static_cast<size_t>(num_experts));
    for (int64_t i = 0; i < num_ranks; ++i) {
      const auto index = static_cast<size_t>(i);
      for (int64_t local = 0; local < experts_per_rank; ++local) {
        rows[static_cast<size_t>(ranks_[index] * experts_per_rank + local)] = {
            static_cast<int32_t>(i * experts_per_rank + local),
            static_cast<int32_t>(boundaries[index])};
      }
    }
    Tensor mine = Tensor::empty(ctx, {num_ranks * experts_per_rank, kernels::kScoreBins},
                                DType::kI32, Purpose::kWorkspace);
    kernels::score_bins(ctx,
                        {.topk_idx = args.topk_idx, .gate = args.gate, .rows = rows, .bins = mine});
    all_.resize(static_cast<size_t>(ep_ * mine.numel()));
    if (ep_ == 1) {
      std::copy_n(mine.data<int32_t>(), mine.numel(), all_.begin());
    } else {
      group.all_gather(mine.raw_data(), all_.data(), mine.bytes());
    }
  }

  // [S, L, 256] of the i-th rank that overflows; `all_` is [S, O, L, 256].
  Bins of_rank(size_t i) const {
    const size_t length = static_cast<size_t>(rank_bins_);
    Bins bins;
    bins.reserve(static_cast<size_t>(ep_) * length);
    for (size_t source = 0; source < static_cast<size_t>(ep_); ++source) {
      const auto begin =
          all_.begin() + static_cast<std::ptrdiff_t>((source * ranks_.size() + i) * length);
      bins.insert(bins.end(), begin, begin + static_cast<std::ptrdiff_t>(length));
    }
    return bins;
  }

 private:
  std::vector<int64_t> ranks_;
  int64_t rank_bins_;
  int64_t ep_;
  Bins all_;
};

}  // namespace

std::vector<plan::KeptRows> exchange_scores(Context& ctx, const comm::Topology& topology,
                                            const EpConfig& config, const PrepareArgs& args,
                                            const plan::CountMatrix& matrix, int64_t capacity,
                                            const std::vector<int64_t>& demand_slots) {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < demand_slots.size(); ++rank) {
    if (demand_slots[rank] > capacity) ranks.push_back(static_cast<int64_t>(rank));
  }
  comm::Communicator& group = topology.ep_group();
  ScoreBins bins(ranks, matrix.experts_per_rank(), config.ep);
  std::vector<int64_t> boundaries(ranks.size(), -1);
  bins.exchange(ctx, group, args, boundaries, config.num_experts);
  std::vector<Bins> coarse;
  for (size_t i = 0; i < ranks.size(); ++i) {
    coarse.push_back(bins.of_rank(i));
    boundaries[i] =
        plan::score_boundary(matrix, ranks[i], capacity, config.alignment, coarse.back());
  }
  bins.exchange(ctx, group, args, boundaries, config.num_experts);
  std::vector<plan::KeptRows> kept(demand_slots.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    kept[static_cast<size_t>(ranks[i])] = plan::keep_by_score(
        matrix, ranks[i], capacity, config.alignment, coarse[i], boundaries[i], bins.of_rank(i));
  }
  return kept;
}

}  // namespace spillway::ep
