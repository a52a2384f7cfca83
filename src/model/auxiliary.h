// Auxiliary losses of the router (load balance and z-loss), computed from load statistics that are linear in tokens:
// summed over all tokens of a micro-batch, they are the same in every layout. Sources: Switch Transformer (aux, per
// layer), DeepSeek-V2 section 2.2.3 (aux, per layer and sequence), Hugging Face's load_balancing_loss_func (aux, over
// all layers), ST-MoE (z).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/plan.h"
#include "moe/moe_layer.h"

namespace mw {

// Auxiliary terms of one micro-batch, from statistics summed over the data-parallel world.
struct AuxLosses {
  // Unweighted. With a balanced load it is 1 for scope "layer", K for scope "model", and the number of MoE layers for
  // scope "sequence", which is the mean over sequences of the sum over layers.
  double aux = 0;
  double z = 0;         // unweighted mean over layers and tokens
  double weighted = 0;  // with coefficients: the term added to the loss
};

// A vector of statistics holds the MoE layers one after the other, each in so many doubles; ranks can add such vectors.
int64_t statistics_size(const MoeSpec& moe);
void append_statistics(LoadStatistics layer, std::vector<double>& to);
// Returns the statistics of the first layer of `from`, and moves `from` to the next layer.
LoadStatistics take_statistics(const MoeSpec& moe, std::span<const double>& from);

class Auxiliary {
 public:
  explicit Auxiliary(const Plan& plan);

  // Whether the loss and gradients of a layer depend on the statistics of all layers: scope "model".
  bool couples_layers() const { return scope_ == AuxScope::model && layers_ > 0; }
  // Losses of the MoE layers `layers` (layer numbers of the model), whose statistics `summed` holds.
  // Scope "layer" or "sequence": the contribution of these layers; contributions add up. Scope "model": layers must be
  // all MoE layers of the model.
  AuxLosses losses(std::span<const int64_t> layers, std::span<const double> summed, int64_t tokens) const;
  // The share of the counted choices that each expert received over the tokens of all layers, which couples the layers.
  // Needs all MoE layers.
  std::vector<double> mean_load(std::span<const int64_t> layers, std::span<const double> summed, int64_t tokens) const;
  // The gradient for one layer, scaled by `seed`. `counts` [E] must be summed over the micro-batch; `mean_load` is only
  // read with scope "model".
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
