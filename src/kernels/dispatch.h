#pragma once
// The choice of a kernel's body by device: the one place of this module that knows which backends
// a build has. An entry (src/kernels/x.cpp) checks its arguments and calls
//
//   SPILLWAY_DISPATCH(ctx, matmul, args);
//
// where `cpu::matmul(Context&, ...)` is declared in cpu/matmul.h. In a build with CUDA the macro
// picks `cuda::fn` by `ctx.device()`, so that a kernel without its twin is a link error and not a
// throw in the middle of a run. It is an expression of the type that the body returns.

#include "spillway/runtime/context.h"

#define SPILLWAY_DISPATCH(ctx, fn, ...) ::spillway::kernels::cpu::fn(ctx, __VA_ARGS__)
