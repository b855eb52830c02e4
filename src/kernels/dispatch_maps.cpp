#include "spillway/kernels/dispatch_maps.h"

#include <algorithm>
#include <limits>

#include "checks.h"
#include "cpu/dispatch_maps.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

void check_ids_and_gates(Context& ctx, const char* op, const Tensor& topk_idx, const Tensor& gate,
                         const Tensor& row_of) {
  check_tensors(ctx, op, {{"topk_idx", topk_idx}, {"gate", gate}, {"row_of", row_of}});
  check_dtype(op, {"topk_idx", topk_idx}, DType::kI32);
  check_rank(op, {"topk_idx", topk_idx}, 2);
  check_accumulator(op, {"gate", gate});
  check_shape(op, {"gate", gate}, topk_idx.shape());
  check_dtype(op, {"row_of", row_of}, DType::kI32);
  check_shape(op, {"row_of", row_of}, topk_idx.shape());
}

/// Experts in ascending order fill the send map and the local maps from their beginning to their
/// end: no write can fall outside, and none is missing.
void check_experts(const char* op, const DispatchMapsArgs& args) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t sent = 0, local = 0, routed = 0, most_rows = 0;
  for (size_t e = 0; e < args.experts.size(); ++e) {
    const ExpertRows& rows = args.experts[e];
    int64_t& next = rows.local ? local : sent;
    SPILLWAY_CHECK(rows.kept >= 0 && rows.kept <= rows.routed && rows.at_cut >= 0, op, ": expert ",
                   e, " keeps ", rows.kept, " (", rows.at_cut, " at the cut) of ", rows.routed,
                   " assignments");
    SPILLWAY_CHECK(rows.first_entry == next, op, ": the first entry of expert ", e, " is ",
                   rows.first_entry, ", it must be ", next);
    next += rows.kept;
    routed += rows.routed;
    most_rows = std::max(most_rows, rows.first_row + rows.kept);
  }
  SPILLWAY_CHECK(sent == args.send_assignment.dim(0) && local == args.local_assignment.dim(0), op,
                 ": the experts keep ", sent, " rows to send and ", local,
                 " that stay for send_assignment ", args.send_assignment.shape(),
                 ", local_assignment ", args.local_assignment.shape());
  SPILLWAY_CHECK(args.topk_idx.numel() <= kMost && most_rows <= kMost, op, ": topk_idx ",
                 args.topk_idx.shape(), " and row_of up to ", most_rows,
                 " must be below 2^31: the maps are i32");
  SPILLWAY_CHECK(routed <= args.topk_idx.numel(), op, ": ", routed, " assignments in topk_idx ",
                 args.topk_idx.shape());
}

}  // namespace

void dispatch_maps(Context& ctx, const DispatchMapsArgs& args) {
  constexpr const char* kOp = "dispatch_maps";
  check_ids_and_gates(ctx, kOp, args.topk_idx, args.gate, args.row_of);
  check_tensors(ctx, kOp,
                {{"send_assignment", args.send_assignment},
                 {"local_assignment", args.local_assignment},
                 {"local_slot", args.local_slot}});
  check_dtype(kOp, {"send_assignment", args.send_assignment}, DType::kI32);
  check_rank(kOp, {"send_assignment", args.send_assignment}, 1);
  check_dtype(kOp, {"local_assignment", args.local_assignment}, DType::kI32);
  check_rank(kOp, {"local_assignment", args.local_assignment}, 1);
  check_dtype(kOp, {"local_slot", args.local_slot}, DType::kI32);
  check_shape(kOp, {"local_slot", args.local_slot}, args.local_assignment.shape());
  check_experts(kOp, args);
  if (args.topk_idx.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, dispatch_maps, args);
}

void dropped_sums(Context& ctx, const DroppedSumsArgs& args) {
  constexpr const char* kOp = "dropped_sums";
  check_ids_and_gates(ctx, kOp, args.topk_idx, args.gate, args.row_of);
  check_tensors(ctx, kOp, {{"sums", args.sums}});
  check_dtype(kOp, {"sums", args.sums}, DType::kF64);
  check_shape(kOp, {"sums", args.sums}, {3});
  SPILLWAY_DISPATCH(ctx, dropped_sums, args);
}

}  // namespace spillway::kernels
