#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spillway/ep/session.h"
#include "spillway/moe/experts.h"
#include "spillway/moe/router.h"
#include "spillway/nn/swiglu_mlp.h"

namespace spillway::moe {

/// What one MoE layer did with one micro-batch: the material of the `ep` metrics.
struct LayerRecord {
  int64_t moe_layer = 0;  ///< index among the MoE layers
  int64_t micro_batch = 0;
  ep::Ledger ledger;
  double aux_loss = 0.0;  ///< this cell's share, already scaled
  double z_loss = 0.0;
};

/// What a forward through MoE layers needs besides its input.
struct MoeCall {
  ep::Session& session;
  int64_t step = 0;
  int64_t micro_batch = 0;
  ep::Sizing sizing = ep::Sizing::kLive;
  bool fused = false;
  double cell_scale = 1.0;   ///< one over (ranks x micro-batches) of the step
  double token_scale = 1.0;  ///< one over the tokens of the step
  int64_t seq = 0;           ///< tokens of a sequence; the decoder fills it in
  /// All ranks, for a balance term with counts over the world; null (evaluation): of this rank.
  comm::Communicator* world = nullptr;
  /// Gets a record a layer, in order; never twice for a recomputed layer. May be null.
  std::vector<LayerRecord>* records = nullptr;
  /// Gets the chosen experts of a layer, i32 [T,K], likewise. May be null.
  std::vector<Tensor>* choices = nullptr;
  /// Gets the router's logits of a layer, [T,E], likewise. May be null.
  std::vector<Tensor>* logits = nullptr;
};

struct MoeOutput {
  Variable out;       ///< [T,H]
  Variable aux_loss;  ///< [1] this cell's share
  Variable z_loss;    ///< [1] this cell's share
};

/// Router, dispatch, experts, combine, and the shared experts beside them.
class MoeLayer {
 public:
  static void append_specs(const MoeConfig& config, int64_t hidden, double out_init_std,
                           const std::string& prefix, DType dtype,
                           std::vector<nn::ParameterSpec>& specs);
  MoeLayer(Context& ctx, const MoeConfig& config, int64_t moe_layer, const std::string& prefix,
           nn::ParameterStore& store);

  /// x [T,H]; T may be 0 and may differ between ranks.
  MoeOutput operator()(Tape& tape, const Variable& x, const MoeCall& call) const;

  /// Undefined when not in use.
  const Tensor& selection_bias() const { return router_.selection_bias(); }

 private:
  int64_t moe_layer_;
  Router router_;
  Experts experts_;
  std::optional<nn::SwigluMlp> shared_;
};

}  // namespace spillway::moe
