// The output head: final norm, vocabulary projection and cross-entropy.
#pragma once

#include <vector>

#include "model/decoder_layer.h"
#include "ops/vocab_part.h"

namespace mw {

// With tensor parallelism each rank computes the logits of its part of the vocabulary, for the tokens of all shards.
class LossHead {
 public:
  // All references must outlive this object.
  LossHead(const Plan& plan, ParamStore& params, TensorStore& store, Comm& tp, const TokenShards& shards);

  // Writes the cross-entropy of each token of this rank's shard (0 without a valid label) into `losses` by the next
  // Stream::wait(). x [T, D]: the output of the last layer. With `seed` > 0 also computes the gradients of seed * (sum
  // over all shards): d_x [T, D] is overwritten, the gradient of the head stored as `store` says, unless its
  // weights are the embedding's; other weight gradients are accumulated. Collective over TP.
  void loss(Stream& stream, const Batch& batch, TensorView x_TD, float seed, TensorView d_x_TD,
            std::vector<float>& losses, Store store);
  // Logits of tokens [begin, begin + count) of a micro-batch of `tokens` tokens, [count, V], on the host; x: this
  // rank's shard. Collective over TP.
  std::vector<float> logits(Stream& stream, int64_t tokens, TensorView x_TD, int64_t begin, int64_t count);

 private:
  // The normed rows of all shards.
  TensorView normalise(Stream& stream, int64_t tokens, TensorView x_TD);
  void differentiate(Stream& stream, TensorView logits_Cv, TensorView labels_C, float scale, TensorView loss_C,
                     TensorView d_logits_Cv);

  int64_t width_, vocab_;
  float norm_eps_;
  Comm& tp_;
  const TokenShards& shards_;
  std::vector<Block> parts_;  // of the vocabulary, by TP rank
  VocabPart part_;
  Parameter &gain_, &head_;
  TensorView rstd_, normed_, d_normed_, logits_, d_logits_, token_loss_;
  TensorView own_statistics_, statistics_, whole_in_, whole_out_;  // with several shards only
};

}  // namespace mw
