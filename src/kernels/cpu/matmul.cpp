#include "matmul.h"

#include "gemm.h"

namespace spillway::kernels::cpu {

void matmul(Context& ctx, const MatmulArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  Gemm g;
  g.m = args.c.shape().rows();
  g.n = args.c.dim(-1);
  g.k = args.trans_a ? a.shape().rows() : a.dim(-1);
  g.a = a.raw_data();
  g.b = b.raw_data();
  g.c = args.c.raw_data();
  g.lda = a.dim(-1);
  g.ldb = b.dim(-1);
  g.ldc = g.n;
  g.trans_a = args.trans_a;
  g.trans_b = args.trans_b;
  g.accumulate = args.accumulate;
  g.in = a.dtype();
  g.out = args.c.dtype();
  gemm(ctx, g);
}

}  // namespace spillway::kernels::cpu
