#include "adamw.h"

#include <cmath>

#include "convert.h"
#include "parallel.h"

namespace spillway::kernels::cpu {
namespace {

/// The scalars of a step, in double outside the loop and rounded once.
struct Factors {
  explicit Factors(const AdamWArgs& args)
      : beta1(static_cast<float>(args.beta1)),
        one_minus_beta1(static_cast<float>(1.0 - args.beta1)),
        beta2(static_cast<float>(args.beta2)),
        one_minus_beta2(static_cast<float>(1.0 - args.beta2)),
        eps(static_cast<float>(args.eps)),
        grad_scale(static_cast<float>(args.grad_scale)),
        lr_decay(static_cast<float>(args.lr * args.decay)) {
    const auto step = static_cast<double>(args.step);
    lr_bias1 = static_cast<float>(args.lr / (1.0 - std::pow(args.beta1, step)));
    inv_bias2 = static_cast<float>(1.0 / (1.0 - std::pow(args.beta2, step)));
  }
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, grad_scale, lr_decay;
  float lr_bias1 = 0.0f, inv_bias2 = 0.0f;
};

/// Elements [begin, end); W is the type of `weight`, void for none.
template <typename W>
void update(const Factors& factors, const AdamWArgs& args, int64_t begin, int64_t end) {
  const Factors f = factors;  // a local copy: stores cannot alias it
  float* __restrict master = args.master.data<float>();
  float* __restrict m = args.m.data<float>();
  float* __restrict v = args.v.data<float>();
  const float* __restrict grad = args.grad.data<float>();
  W* __restrict weight = nullptr;
  if constexpr (!std::is_void_v<W>) weight = args.weight.data<W>();
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = f.grad_scale * grad[i];
    const float mi = f.beta1 * m[i] + f.one_minus_beta1 * g;
    const float vi = f.beta2 * v[i] + f.one_minus_beta2 * g * g;
    const float direction = f.lr_bias1 * mi / (std::sqrt(vi * f.inv_bias2) + f.eps);
    const float updated = master[i] - (direction + f.lr_decay * master[i]);
    m[i] = mi;
    v[i] = vi;
    master[i] = updated;
    if constexpr (!std::is_void_v<W>) store(weight[i], updated);
  }
}

}  // namespace

void adamw(Context& ctx, const AdamWArgs& args) {
  const Factors factors(args);
  // Pure f32 training may pass the master as weight.
  const bool has_weight = args.weight.defined() && args.weight.raw_data() != args.master.raw_data();
  parallel_elements(ctx, args.master.numel(), [&](int64_t begin, int64_t end) {
    if (!has_weight) {
      update<void>(factors, args, begin, end);
    } else if (args.weight.dtype() == DType::kBF16) {
      update<bf16>(factors, args, begin, end);
    } else {
      update<float>(factors, args, begin, end);
    }
  });
}

}  // namespace spillway::kernels::cpu
