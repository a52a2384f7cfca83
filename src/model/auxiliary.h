// Auxiliary losses of routing, from load statistics that are linear in tokens: summed over all tokens of a micro-batch
// they are the same in every layout. Sources: Switch Transformer (aux, per layer), DeepSeek-V2 section 2.2.3 (aux, per
// layer and sequence), Hugging Face's load_balancing_loss_func (aux, over all layers), ST-MoE (z).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/moe_layer.h"
#include "spec/plan.h"

namespace mw {

// Auxiliary terms of one micro-batch, from statistics summed over the data-parallel world.
struct AuxLosses {
  // Unweighted, at balance: 1 with scope "layer", K with scope "model", the number of MoE layers with scope "sequence",
  // which is the mean over sequences of the sum over layers.
  double aux = 0;
  double z = 0;         // unweighted mean over layers and tokens
  double weighted = 0;  // coefficients applied: what is added to the loss
};

// Doubles that one MoE layer has in a vector of statistics: counts[E], prob_sums[E], z_sum, dropped, sequence_sum.
int64_t statistics_size(const MoeSpec& moe);

class Auxiliary {
 public:
  explicit Auxiliary(const Plan& plan);

  // Whether loss and gradients of a layer need the statistics of all: scope "model".
  bool couples_layers() const { return scope_ == AuxScope::model && layers_ > 0; }
  // Of the MoE layers `layers` (numbers in the model), whose statistics stand one after the other in `summed`. Scope
  // "layer" or "sequence": each layer's share; shares add up. Scope "model": layers must be all MoE layers of the
  // model.
  AuxLosses losses(std::span<const int64_t> layers, std::span<const double> summed, int64_t tokens) const;
  // Share of the choices that each expert got over the tokens of all layers: what couples them. Of all MoE layers.
  std::vector<double> mean_load(std::span<const int64_t> layers, std::span<const double> summed, int64_t tokens) const;
  // Of one layer, scaled by `seed`. `counts` [E] summed over the micro-batch; `mean_load` is read with scope "model"
  // alone.
  AuxGradient gradient(int64_t layer, std::span<const double> counts, std::span<const double> mean_load, int64_t tokens,
                       double seed) const;

 private:
  const MoeSpec& moe_of(int64_t layer) const;
  ModelSpec model_;
  double coef_, z_coef_, layers_;
  AuxScope scope_;
  double seq_len_;
};

}  // namespace mw
