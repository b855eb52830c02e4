#include "spillway/kernels/attention.h"

#include "checks.h"
#include "cpu/attention.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

/// What forward and backward share: q [B,S,Hq,D], k and v [B,S,Hk,D], out like q, lse [B,Hq,S].
void check(const Context& ctx, const char* op, double scale, const NamedTensor& q,
           const NamedTensor& k, const NamedTensor& v, const NamedTensor& out,
           const NamedTensor& lse) {
  SPILLWAY_CHECK(scale > 0, op, ": scale is ", scale, ", it must be positive");
  check_tensors(ctx, op, {q, k, v, out, lse});
  check_floating(op, q);
  for (const NamedTensor* t : {&k, &v, &out}) check_dtype(op, *t, q.tensor.dtype());
  check_dtype(op, lse, accumulator_dtype(q.tensor.dtype()));
  check_rank(op, q, 4);
  check_rank(op, k, 4);
  const Shape& s = q.tensor.shape();
  const int64_t kv_heads = k.tensor.dim(2);
  check_shape(op, k, {s[0], s[1], kv_heads, s[3]});
  check_shape(op, v, k.tensor.shape());
  check_shape(op, out, s);
  check_shape(op, lse, {s[0], s[2], s[1]});
  SPILLWAY_CHECK(s[2] == 0 || (kv_heads > 0 && s[2] % kv_heads == 0), op, ": ", s[2],
                 " query heads (q ", s, ") are not a multiple of ", kv_heads, " kv heads (k ",
                 k.tensor.shape(), ")");
}

}  // namespace

void attention(Context& ctx, const AttentionArgs& args) {
  check(ctx, "attention", args.scale, {"q", args.q}, {"k", args.k}, {"v", args.v},
        {"out", args.out}, {"lse", args.lse});
  if (args.out.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, attention, args);
}

void attention_backward(Context& ctx, const AttentionBackwardArgs& args) {
  constexpr const char* kOp = "attention_backward";
  check(ctx, kOp, args.scale, {"q", args.q}, {"k", args.k}, {"v", args.v}, {"out", args.out},
        {"lse", args.lse});
  const NamedTensor like_q[] = {{"dout", args.dout}, {"dq", args.dq}};
  const NamedTensor like_k[] = {{"dk", args.dk}, {"dv", args.dv}};
  for (const NamedTensor& t : like_q) {
    check_tensors(ctx, kOp, {t});
    check_dtype(kOp, t, args.q.dtype());
    check_shape(kOp, t, args.q.shape());
  }
  for (const NamedTensor& t : like_k) {
    check_tensors(ctx, kOp, {t});
    check_dtype(kOp, t, args.q.dtype());
    check_shape(kOp, t, args.k.shape());
  }
  if (args.q.numel() == 0) {
    // Without query heads no gradient reaches k and v.
    args.dk.zero();
    args.dv.zero();
    return;
  }
  SPILLWAY_DISPATCH(ctx, attention_backward, args);
}

int64_t attention_workspace_bytes(const AttentionSizes& sizes, DType dtype, int64_t threads) {
  return cpu::attention_workspace_bytes(sizes, dtype, threads);
}

int64_t attention_backward_workspace_bytes(const AttentionSizes& sizes, DType dtype,
                                           int64_t threads) {
  return cpu::attention_backward_workspace_bytes(sizes, dtype, threads);
}

}  // namespace spillway::kernels
