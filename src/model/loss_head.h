// The end of a model: final norm, vocabulary product, cross-entropy.
#pragma once

#include <vector>

#include "model/decoder_layer.h"

namespace mw {

class LossHead {
 public:
  // All must outlive it.
  LossHead(const Plan& plan, ParamStore& params, TensorStore& store);

  // Sum of cross-entropy over the valid ones of T labels, from the output x [T, D] of the last layer. With `seed` >
  // 0 also the gradients of seed * sum: d_x [T, D] is overwritten, those of the weights are added to.
  double loss(Stream& stream, const int32_t* labels_T, TensorView x_TD, float seed, TensorView d_x_TD);
  // Logits of rows of x, [T, V], on the host.
  std::vector<float> logits(Stream& stream, TensorView x_TD);

 private:
  void normalise(Stream& stream, TensorView x_TD, TensorView normed_TD);

  int64_t width_, vocab_;
  float norm_eps_;
  Parameter &gain_, &head_;
  TensorView rstd_, normed_, d_normed_, logits_, d_logits_, token_loss_;
};

}  // namespace mw
