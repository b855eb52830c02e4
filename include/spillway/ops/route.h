#pragma once

#include "spillway/autograd/tape.h"
#include "spillway/comm/communicator.h"
#include "spillway/kernels/routing.h"

namespace spillway::ops {

using autograd::Tape;
using autograd::Variable;

/// Which tokens a balance term takes together.
enum class AuxLoss {
  kNone,      ///< no term: 0
  kSwitch,    ///< those of a (rank, micro-batch) cell; mean over cells
  kSequence,  ///< those of a sequence; mean over sequences
  kGlobal,    ///< counts of a micro-batch over all ranks, probabilities of each token
};

struct RouteOptions {
  kernels::RoutingOptions routing;
  int64_t top_k = 1;
  /// f32 [E], added to the scores for the choice only; undefined: none.
  Tensor bias = {};
  /// Experts dealt out in turn, whatever the logits say.
  bool force_balanced = false;
  AuxLoss aux_loss = AuxLoss::kSwitch;
  /// Tokens of a sequence, of which T must be a multiple (kSequence).
  int64_t seq = 0;
  /// All ranks of the step; null: counts of this rank alone, no collective (kGlobal).
  comm::Communicator* world = nullptr;
  /// One over the number of (rank, micro-batch) cells of the step.
  double cell_scale = 1.0;
  /// One over the number of tokens of the step.
  double token_scale = 1.0;
};

/// What the router decided for T tokens.
struct RouteResult {
  Tensor topk_idx;    ///< i32 [T,K]; never part of a gradient
  Tensor logits;      ///< [T,E] as given
  Variable gate;      ///< [T,K] weights
  Variable aux_loss;  ///< [1] this rank's share of the balance term
  Variable z_loss;    ///< [1] this cell's share: token_scale * sum_t lse_t^2
};

/// logits [T,E] in the accumulator dtype. A balance term is L = E/K * sum_e (c_e/N) * P_e with c_e
/// assignments chosen by N tokens (constants), P_e the mean of kernels::route's probs: 1 when
/// balanced (Switch Transformers, Fedus et al. 2021, divided by K; per sequence: DeepSeek-V3,
/// arXiv 2412.19437; over ranks: Qiu et al. 2025, arXiv 2501.11873). Shares of it add up over ranks
/// and micro-batches:
///   kSwitch    cell_scale * L of the T tokens;
///   kSequence  token_scale * seq * L, summed over the sequences;
///   kGlobal    token_scale * T * L with c and N of all ranks: a collective of `world` in forward,
///              also of a rank without tokens.
/// T = 0 adds 0. In a recompute region the choice, its weights and the sums over ranks are kept:
/// nothing is chosen and no collective runs again.
RouteResult route(Tape& tape, const Variable& logits, const RouteOptions& options);

}  // namespace spillway::ops
