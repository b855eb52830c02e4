#include "spillway/kernels/matmul.h"

#include "checks.h"
#include "cpu/matmul.h"
#include "dispatch.h"

namespace spillway::kernels {
namespace {

constexpr const char* kOp = "matmul";

void check(const Context& ctx, const MatmulArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  const Tensor& c = args.c;
  check_tensors(ctx, kOp, {{"a", a}, {"b", b}, {"c", c}});
  check_floating(kOp, {"a", a});
  check_dtype(kOp, {"b", b}, a.dtype());
  SPILLWAY_CHECK(c.dtype() == a.dtype() || (a.dtype() == DType::kBF16 && c.dtype() == DType::kF32),
                 kOp, ": c is ", dtype_name(c.dtype()), " for inputs of ", dtype_name(a.dtype()),
                 ", it must have their dtype (or f32 for bf16)");
  for (const NamedTensor& t : {NamedTensor{"a", a}, {"b", b}, {"c", c}}) {
    SPILLWAY_CHECK(t.tensor.shape().rank() >= 1, kOp, ": ", t.name, " is a scalar");
  }
  const int64_t m = args.trans_a ? a.dim(-1) : a.shape().rows();
  const int64_t k = args.trans_a ? a.shape().rows() : a.dim(-1);
  const int64_t k_b = args.trans_b ? b.dim(-1) : b.shape().rows();
  const int64_t n = args.trans_b ? b.shape().rows() : b.dim(-1);
  SPILLWAY_CHECK(k == k_b, kOp, ": a ", a.shape(), args.trans_a ? " transposed" : "", " has depth ",
                 k, ", b ", b.shape(), args.trans_b ? " transposed" : "", " has ", k_b);
  SPILLWAY_CHECK(c.shape().rows() == m && c.dim(-1) == n, kOp, ": c has shape ", c.shape(), ", a ",
                 a.shape(), args.trans_a ? " transposed" : "", " and b ", b.shape(),
                 args.trans_b ? " transposed" : "", " give [", m, ", ", n, "]");
}

}  // namespace

void matmul(Context& ctx, const MatmulArgs& args) {
  check(ctx, args);
  if (args.c.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, matmul, args);
}

}  // namespace spillway::kernels
