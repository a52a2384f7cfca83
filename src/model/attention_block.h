// Attention with grouped key/value heads: projections, query/key norm, clamp, rotary embedding, attention, output
// projection.
#pragma once

#include "model/attention.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace mw {

struct AttentionWeights {
  Weight wq, wk, wv, wo;
  TensorView d_wq, d_wk, d_wv, d_wo;
  TensorView q_gain, k_gain, d_q_gain, d_k_gain;  // f32, with query/key norm only
};

// Kept for backward: projections before norm, clamp and rotation (recomputed), the output and its log-sum-exp.
struct AttentionSaved {
  TensorView q, k, v, o, lse, q_rstd, k_rstd;
};

// Flat scratch shared by all layers.
struct AttentionScratch {
  TensorView q, k, v, d_q, d_k, d_v, d_o, branch;
  TensorView rope_cos, rope_sin;  // f32 [S_max, h/2]
};

class AttentionBlock : public Attention {
 public:
  AttentionBlock(const AttentionSpec& spec, double norm_eps, AttentionWeights weights, AttentionSaved saved,
                 AttentionScratch scratch, bool defer_inputs = false);

  void forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) override;
  void backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD) override;
  // At any time after backward with defer_inputs: the gradients of queries, keys and values then lie where they
  // themselves were saved.
  void backward_inputs(Stream& stream, TensorView x_TD) override;

 private:
  struct Views {
    TensorView q, k, v;
  };
  // Queries, keys and values as attention reads them, from the saved projections.
  Views prepare(Stream& stream, int64_t tokens, const Sequences& sequences, bool store_statistics);
  void rotate(Stream& stream, TensorView x_THh, const Sequences& sequences, RopeDirection direction, TensorView y_THh);
  void normalise(Stream& stream, TensorView saved, TensorView gain, TensorView rstd, TensorView out, int64_t norm_width,
                 bool store_statistics);
  int64_t norm_width(int64_t heads) const;

  AttentionSpec spec_;
  float norm_eps_;
  AttentionWeights weights_;
  AttentionSaved saved_;
  AttentionScratch scratch_;
  bool defer_inputs_;
  Views gradients_;  // [T, heads x h], from backward to backward_inputs
};

}  // namespace mw
