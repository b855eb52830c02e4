#include "spillway/kernels/adamw.h"

#include "checks.h"
#include "cpu/adamw.h"
#include "dispatch.h"

namespace spillway::kernels {

void adamw(Context& ctx, const AdamWArgs& args) {
  constexpr const char* kOp = "adamw";
  check_tensors(ctx, kOp,
                {{"master", args.master}, {"m", args.m}, {"v", args.v}, {"grad", args.grad}});
  for (const NamedTensor& t : std::initializer_list<NamedTensor>{
           {"master", args.master}, {"m", args.m}, {"v", args.v}, {"grad", args.grad}}) {
    check_dtype(kOp, t, DType::kF32);
    check_numel(kOp, t, args.master.numel());
  }
  if (args.weight.defined()) {
    check_tensors(ctx, kOp, {{"weight", args.weight}});
    SPILLWAY_CHECK(args.weight.dtype() == DType::kF32 || args.weight.dtype() == DType::kBF16, kOp,
                   ": weight is ", dtype_name(args.weight.dtype()), ", it must be f32 or bf16");
    check_numel(kOp, {"weight", args.weight}, args.master.numel());
  }
  SPILLWAY_CHECK(args.step >= 1, kOp, ": step is ", args.step, ", it must be at least 1");
  SPILLWAY_CHECK(args.beta1 >= 0.0 && args.beta1 < 1.0, kOp, ": beta1 is ", args.beta1,
                 ", it must be in [0, 1)");
  SPILLWAY_CHECK(args.beta2 >= 0.0 && args.beta2 < 1.0, kOp, ": beta2 is ", args.beta2,
                 ", it must be in [0, 1)");
  SPILLWAY_CHECK(args.eps >= 0.0, kOp, ": eps is ", args.eps, ", it must be at least 0");
  if (args.master.numel() == 0) return;
  SPILLWAY_DISPATCH(ctx, adamw, args);
}

}  // namespace spillway::kernels
