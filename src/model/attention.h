// Self-attention of one layer for one live micro-batch, of either kind.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/attention.h"
#include "spec/model_spec.h"

namespace mw {

class Attention {
 public:
  virtual ~Attention() = default;

  // out[T, D] (overwritten) = attention of the normed input x. T = sequences x seq_len.
  virtual void forward(Stream& stream, TensorView x_TD, int64_t seq_len, TensorView out_TD) = 0;
  // d_x (overwritten) from d_out, with the saved tensors of forward; adds to the weight gradients, but for those of the
  // matrices that read x. d_x must not alias d_out.
  virtual void backward(Stream& stream, int64_t seq_len, TensorView d_out_TD, TensorView d_x_TD) = 0;
  // Adds to the gradients of the matrices that read x. After backward, before any other block's; at any time after it
  // where the block keeps what it takes.
  virtual void backward_inputs(Stream& stream, TensorView x_TD) = 0;
};

// What the operator is asked for. T = sequences x seq_len.
AttentionShape attention_shape(const AttentionSpec& spec, int64_t tokens, int64_t seq_len);

}  // namespace mw
