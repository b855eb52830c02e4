#pragma once
// AdamW over the parameters of a rank.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "spillway/nn/parameter.h"
#include "spillway/optim/config.h"

namespace spillway::optim {

/// Holds fp32 master weights and moments (Purpose::kOptimizer), flat per sync group and laid out
/// like the gradients. A f32 parameter is its own master. The master of a bf16 parameter starts as
/// its value, so value = bf16(master) at all times.
class AdamW {
 public:
  /// Keeps a reference to `store`, which must outlive it. Moments start at 0. Throws Error for f64
  /// parameters: such models check gradients and are not trained.
  AdamW(Context& ctx, nn::ParameterStore& store, const OptimConfig& config);
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// One update of all parameters from their gradients times `grad_scale` (kernels/adamw.h has the
  /// formula). `step` counts the updates from 1 (bias correction). Weight decay acts on parameters
  /// whose spec says so. No collective. Gradients stay as they are.
  void step(Context& ctx, double lr, double grad_scale, int64_t step);

  /// State of one parameter: f32, its local shape, shared with the optimizer, so a checkpoint
  /// writes it and restores into it (and then calls `refresh_values`). Throw Error naming the
  /// parameter when there is none.
  Tensor& master(std::string_view name) { return at(name).master; }
  Tensor& m(std::string_view name) { return at(name).m; }
  Tensor& v(std::string_view name) { return at(name).v; }
  /// value = master, rounded to the parameters' dtype. Nothing to do for f32.
  void refresh_values(Context& ctx);

  /// Bytes of the state, gaps of the flat layout included; a f32 model's masters are weights and
  /// count as such.
  int64_t bytes() const;

 private:
  struct State {
    Tensor master;
    Tensor m;
    Tensor v;
  };
  struct FlatState {
    Tensor master;  // undefined for a f32 model
    Tensor m;
    Tensor v;
  };
  State& at(std::string_view name);

  nn::ParameterStore& store_;
  OptimConfig config_;
  std::array<FlatState, 2> flat_;  // by sync group
  std::map<std::string, State, std::less<>> states_;
};

}  // namespace spillway::optim
