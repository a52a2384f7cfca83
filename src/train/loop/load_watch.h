// Detects a collapsed router: one that sends nearly all tokens to a few experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_spec.h"
#include "config/run_spec.h"

namespace mw {

class LoadWatch {
 public:
  LoadWatch(const ModelSpec& model, const RunSpec& run);

  // load: [MoE layer][expert], the number of choices in one whole step. Returns the warning to print, or "". A layer
  // counts as collapsed when at most a quarter of its experts (or top-k, if that is more) received 90 % of the choices
  // in each of the last kPatience steps. Warns again after ten times as many steps.
  std::string observe(int64_t step, const std::vector<std::vector<double>>& load);

  static constexpr int64_t kPatience = 10;

 private:
  struct Layer {
    int64_t number = 0;  // in the model
    MoeSpec moe;
    int64_t collapsed_steps = 0;  // in a row
  };
  std::string remedy(const MoeSpec& moe) const;

  std::vector<Layer> layers_;  // MoE layers
  double aux_loss_coef_, bias_rate_;
  int64_t warn_at_ = kPatience;  // collapsed steps of a layer
};

}  // namespace mw
