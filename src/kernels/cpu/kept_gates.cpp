#include "kept_gates.h"

#include <cmath>

#include "no_index.h"
#include "parallel.h"

namespace spillway::kernels::cpu {
namespace {

template <typename T>
struct GateSums {
  T all = 0;   // of the token's assignments
  T kept = 0;  // of the kept ones among them; equal bits when none is lost
};

// One token. `ids` may be null: only what is kept is an assignment then.
template <typename T>
GateSums<T> sum_gates(const T* gate, const int32_t* row_of, const int32_t* ids, int64_t top_k) {
  GateSums<T> sums;
  for (int64_t k = 0; k < top_k; ++k) {
    const bool kept = row_of[k] != kNoRow;
    if (kept) sums.kept += gate[k];
    if (kept || (ids != nullptr && ids[k] != kNoExpert)) sums.all += gate[k];
  }
  return sums;
}

// Nothing is done where S_kept is 0, nor where it is so small that S_all / S_kept is infinite.
template <typename T>
bool scales(const GateSums<T>& sums) {
  return sums.kept != T(0) && !std::isinf(sums.all / sums.kept);
}

const int32_t* ids_of(const Tensor& topk_idx) {
  return topk_idx.defined() ? topk_idx.data<int32_t>() : nullptr;
}

template <typename F>
void visit_gates(DType dtype, const F& f) {
  if (dtype == DType::kF64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

}  // namespace

void renormalize_kept(Context& ctx, const RenormalizeArgs& args) {
  const int64_t top_k = args.gate.dim(1);
  const int32_t* row_of = args.row_of.data<int32_t>();
  const int32_t* ids = ids_of(args.topk_idx);
  visit_gates(args.gate.dtype(), [&]<typename T>() {
    const T* gate = args.gate.data<T>();
    T* out = args.out.data<T>();
    parallel_rows(ctx, args.gate.dim(0), top_k, [=](int64_t t) {
      const int64_t first = t * top_k;
      const GateSums<T> sums =
          sum_gates(gate + first, row_of + first, ids == nullptr ? ids : ids + first, top_k);
      const T factor = scales(sums) ? sums.all / sums.kept : T(1);
      for (int64_t i = first; i < first + top_k; ++i) {
        out[i] = row_of[i] == kNoRow ? gate[i] : gate[i] * factor;
      }
    });
  });
}

void renormalize_kept_backward(Context& ctx, const RenormalizeBackwardArgs& args) {
  const int64_t top_k = args.gate.dim(1);
  const int32_t* row_of = args.row_of.data<int32_t>();
  const int32_t* ids = ids_of(args.topk_idx);
  visit_gates(args.gate.dtype(), [&]<typename T>() {
    const T* gate = args.gate.data<T>();
    const T* d_out = args.d_out.data<T>();
    T* d_gate = args.d_gate.data<T>();
    parallel_rows(ctx, args.gate.dim(0), top_k, [=](int64_t t) {
      const int64_t first = t * top_k, end = first + top_k;
      const GateSums<T> sums =
          sum_gates(gate + first, row_of + first, ids == nullptr ? ids : ids + first, top_k);
      T factor = 1, mean = 0;
      if (scales(sums)) {
        for (int64_t i = first; i < end; ++i) {
          if (row_of[i] != kNoRow) mean += d_out[i] * gate[i];
        }
        mean /= sums.kept;
        factor = sums.all / sums.kept;
      }
      for (int64_t i = first; i < end; ++i) {
        d_gate[i] = row_of[i] == kNoRow ? T(0) : factor * (d_out[i] - mean);
      }
    });
  });
}

}  // namespace spillway::kernels::cpu
