#include "spillway/kernels/score_bins.h"

#include "checks.h"
#include "cpu/score_bins.h"
#include "dispatch.h"

namespace spillway::kernels {

void score_bins(Context& ctx, const ScoreBinsArgs& args) {
  constexpr const char* kOp = "score_bins";
  check_tensors(ctx, kOp, {{"topk_idx", args.topk_idx}, {"gate", args.gate}, {"bins", args.bins}});
  check_dtype(kOp, {"topk_idx", args.topk_idx}, DType::kI32);
  check_accumulator(kOp, {"gate", args.gate});
  check_shape(kOp, {"gate", args.gate}, args.topk_idx.shape());
  check_dtype(kOp, {"bins", args.bins}, DType::kI32);
  check_rank(kOp, {"bins", args.bins}, 2);
  check_shape(kOp, {"bins", args.bins}, {args.bins.dim(0), kScoreBins});
  for (size_t expert = 0; expert < args.rows.size(); ++expert) {
    const ScoreBinRow& row = args.rows[expert];
    SPILLWAY_CHECK(row.row >= -1 && row.row < args.bins.dim(0), kOp, ": the row of expert ", expert,
                   " is ", row.row, ", it must be in [-1, ", args.bins.dim(0), ")");
    SPILLWAY_CHECK(row.boundary >= -1 && row.boundary < kScoreBins, kOp,
                   ": the boundary of expert ", expert, " is ", row.boundary,
                   ", it must be in [-1, ", kScoreBins, ")");
  }
  SPILLWAY_DISPATCH(ctx, score_bins, args);
}

}  // namespace spillway::kernels
