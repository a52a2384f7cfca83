// The interface of self-attention, for one layer and one micro-batch in flight.
#pragma once

#include <optional>

#include "config/model_spec.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "ops/attention.h"
#include "ops/matmul.h"

namespace mw {

// How the T tokens of a micro-batch are divided: into sequences of `length`, and these into documents.
struct Sequences {
  int64_t length = 0;
  TensorView first_T;  // beginnings of documents, as in ops/attention.h; empty: each sequence is one document
  // Of generation: tokens of each sequence before these, whose keys and values are in the cache; these are added.
  std::optional<int64_t> past = {};
  TensorView largest_logits_H = {};  // f32, raised to those of forward (ops/attention_logits.h); empty: not computed
  bool has_documents() const { return first_T.data != nullptr; }
  int64_t first_position() const { return past.value_or(0); }
};

class Attention {
 public:
  virtual ~Attention() = default;

  // out[T, D] (overwritten) = attention of the normed input x. Saves what backward needs.
  virtual void forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) = 0;
  // d_x (overwritten) from d_out, with the tensors that forward saved. Gradients of matrices are stored as `store`
  // says, except those of the matrices that read x; others are accumulated. d_x must not alias d_out.
  virtual void backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD,
                        Store store) = 0;
  // Stores the weight gradients of the matrices that read x. Must be called after backward and before backward of any
  // other block, or at any later time where the block keeps the gradients that this needs.
  virtual void backward_inputs(Stream& stream, TensorView x_TD, Store store) = 0;
};

// The shape passed to the attention operators; whole sequences only.
AttentionShape attention_shape(const AttentionSpec& spec, int64_t tokens, const Sequences& sequences, bool documents);

}  // namespace mw
