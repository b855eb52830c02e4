#pragma once
// AdamW over the parameters of a rank.

#include <array>
#include <cstdint>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/nn/parameter.h"
#include "spillway/optim/config.h"

namespace spillway::optim {

/// A run of elements of one parameter whose state this rank holds. The tensors share memory with
/// the optimizer, so a checkpoint writes them and restores into them (then `refresh_values`).
struct StatePiece {
  const nn::Parameter* parameter = nullptr;
  int64_t begin = 0, count = 0;  ///< elements within the parameter's local value
  /// f32 [count]. A f32 parameter is its own master: a slice of its value.
  Tensor master, m, v;
  /// True on exactly one rank of the world for each element: that rank writes it.
  bool primary = false;
};

/// Holds fp32 master weights and moments (Purpose::kOptimizer), flat per sync group and laid out
/// like the gradients. A f32 parameter is its own master. The master of a bf16 parameter starts as
/// its value, so value = bf16(master) at all times.
class AdamW {
 public:
  /// Keeps references to `store` and `topology`, which must outlive it. Moments start at 0. Throws
  /// Error for f64 parameters: such models check gradients and are not trained.
  AdamW(Context& ctx, nn::ParameterStore& store, comm::Topology& topology,
        const OptimConfig& config, bool zero);
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// One update of all parameters from their gradients times `grad_scale` (kernels/adamw.h has the
  /// formula). `step` counts the updates from 1 (bias correction). Weight decay acts on parameters
  /// whose spec says so. Gradients stay as they are.
  void step(Context& ctx, double lr, double grad_scale, int64_t step);

  /// What this rank holds, in the order of the store. Without zero: one piece a parameter, all of
  /// its local value.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  /// value = master, rounded to the parameters' dtype. Nothing to do for f32.
  void refresh_values(Context& ctx);

  /// Bytes of the state, gaps of the flat layout included; a f32 model's masters are weights and
  /// count as such.
  int64_t bytes() const;

 private:
  struct FlatState {
    Tensor master;  // undefined for a f32 model
    Tensor m;
    Tensor v;
  };

  nn::ParameterStore& store_;
  comm::Topology& topology_;
  OptimConfig config_;
  std::array<FlatState, 2> flat_;  // by sync group
  std::vector<StatePiece> pieces_;
};

}  // namespace spillway::optim
