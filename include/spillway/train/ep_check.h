#pragma once
// The EP self-check: the configured model for a few steps at ep = 1 and at its own ep, on the same
// data, and what differs. What it is for: gradients of experts that are off by the size of a group,
// or a norm that misses some of them, hide behind Adam and show in no loss.

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/config/config.h"

namespace spillway::train {

/// Elements of the parameters that this rank holds under the configured ep, by name.
using HeldValues = std::map<std::string, std::vector<float>>;

/// What one step of a run shows, on one rank.
struct EpCheckStep {
  double loss = 0.0;  ///< mean over the tokens of the global batch
  double aux_loss = 0.0;
  double z_loss = 0.0;
  double grad_norm = 0.0;                           ///< before clipping
  std::vector<std::vector<int64_t>> expert_counts;  ///< a MoE layer: [E] over the world
  HeldValues gradients;                             ///< summed over ranks, before clipping
  HeldValues weights;                               ///< after the update
  /// A (micro-batch, MoE layer), in the order in which they ran: the chosen experts i32 [T,K] of
  /// this rank's tokens, and the router's logits [T,E].
  std::vector<Tensor> choices, logits;
  std::vector<Tensor> biases;  ///< f32 [E] a MoE layer, of the choice; empty when not in use
};

/// What may differ between the two runs, and why.
struct EpCheckTolerance {
  double loss, gradient, norm, weight;
  /// Two experts whose selection scores are closer than this may change places by rounding.
  double margin;
};
/// f32: sums of the same terms in another order differ by units of 6e-8, over a thousand terms by
/// some 1e-6. bf16: sums are fp32 all the same, so only a result that lies between two bf16 values
/// may go the other way: 2^-9 of some elements.
EpCheckTolerance ep_check_tolerance(DType dtype);

/// Tokens whose experts differ between the two runs, in the first layer of a micro-batch where any
/// does: later ones follow from it.
struct EpCheckFlips {
  int64_t tokens = 0;
  double margin = 0.0;  ///< largest difference of the selection scores of experts that swapped
  int64_t layer = -1;   ///< MoE layer of the largest
};
/// Of this rank.
EpCheckFlips find_flips(const config::Config& config, const EpCheckStep& one,
                        const EpCheckStep& other);

/// The verdict, the same on every rank; the text is rank 0's.
struct EpCheckResult {
  bool agrees = false;
  std::string text;
};

/// Collective of the world of `topology`, which has the configured ep. Steps of `one` (ep = 1) and
/// `other` in order; `flips` of this rank for each.
EpCheckResult compare_ep_runs(const config::Config& config, const comm::Topology& topology,
                              const std::vector<EpCheckStep>& one,
                              const std::vector<EpCheckStep>& other,
                              const std::vector<EpCheckFlips>& flips);

/// Collective of the world: runs both and compares them. Buffers are lossless whatever
/// `capacity` says; the optimizer's epsilon is raised so far that updates follow the gradient, as
/// Adam would turn rounding of tiny gradients into steps of full size; ZeRO-1 is off, since it
/// keeps the sums of a share of the gradients only. Writes no file.
EpCheckResult check_ep(Context& ctx, comm::Communicator& world, const config::Config& config);

}  // namespace spillway::train
