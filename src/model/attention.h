// Self-attention of one layer for one live micro-batch, of either kind.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/attention.h"
#include "spec/model_spec.h"

namespace mw {

// How the T tokens of a micro-batch are cut: into sequences of `length`, and these into documents.
struct Sequences {
  int64_t length = 0;
  TensorView first_T;  // of documents, as ops/attention.h wants it; empty: a sequence is one
  bool has_documents() const { return first_T.data != nullptr; }
};

class Attention {
 public:
  virtual ~Attention() = default;

  // out[T, D] (overwritten) = attention of the normed input x.
  virtual void forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) = 0;
  // d_x (overwritten) from d_out, with the saved tensors of forward; adds to the weight gradients, but for those of the
  // matrices that read x. d_x must not alias d_out.
  virtual void backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD) = 0;
  // Adds to the gradients of the matrices that read x. After backward, before any other block's; at any time after it
  // where the block keeps what it takes.
  virtual void backward_inputs(Stream& stream, TensorView x_TD) = 0;
};

// What the operators are asked for, of whole sequences.
AttentionShape attention_shape(const AttentionSpec& spec, int64_t tokens, int64_t seq_len, bool documents);

}  // namespace mw
