// The token embedding: a row of the embedding table for each token.
#pragma once

#include "model/decoder_layer.h"
#include "ops/vocab_part.h"

namespace mw {

class TokenEmbedding {
 public:
  // All references must outlive this object.
  TokenEmbedding(const Plan& plan, ParamStore& params, TensorStore& store, const TokenShards& shards);

  // x [T, D] of this rank's shard (overwritten); each row comes from the rank that holds it. Collective over TP.
  void forward(Stream& stream, const Batch& batch, TensorView x_TD);
  // Accumulates the gradient of the table rows that this rank holds, from d_x [T, D] of all shards. Collective over TP.
  void backward(Stream& stream, const Batch& batch, TensorView d_x_TD);

 private:
  const TokenShards& shards_;
  Parameter& table_;
  VocabPart part_;
  TensorView whole_in_, whole_d_out_, whole_out_;  // as in LayerScratch
};

}  // namespace mw
