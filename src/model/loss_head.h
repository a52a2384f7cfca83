// The end of a model: final norm, vocabulary product, cross-entropy.
#pragma once

#include <vector>

#include "model/decoder_layer.h"
#include "ops/vocab_part.h"

namespace mw {

// Over TP each rank computes the logits of its part of the vocabulary, for the tokens of all shards.
class LossHead {
 public:
  // All must outlive it.
  LossHead(const Plan& plan, ParamStore& params, TensorStore& store, Comm& tp, const TokenShards& shards);

  // Cross-entropy of the tokens of the rank's shard, 0 without a valid label, from the output x [T, D] of the last
  // layer: into `losses`, by the next Stream::wait(). With `seed` > 0 also the gradients of seed * the sum over all
  // shards: d_x [T, D] is overwritten, those of the weights are added to. Collective over TP.
  void loss(Stream& stream, const Batch& batch, TensorView x_TD, float seed, TensorView d_x_TD,
            std::vector<float>& losses);
  // Logits of tokens [begin, begin + count) of a micro-batch of `tokens` in all, [count, V], on the host; x: of the
  // rank's shard. Collective over TP.
  std::vector<float> logits(Stream& stream, int64_t tokens, TensorView x_TD, int64_t begin, int64_t count);

 private:
  // Normed rows of all shards.
  TensorView normalise(Stream& stream, int64_t tokens, TensorView x_TD);
  void differentiate(Stream& stream, TensorView logits_Cv, TensorView labels_C, float scale, TensorView loss_C,
                     TensorView d_logits_Cv);

  int64_t width_, vocab_;
  float norm_eps_;
  Comm& tp_;
  const TokenShards& shards_;
  std::vector<Block> parts_;  // of the vocabulary, by rank of TP
  VocabPart part_;
  Parameter &gain_, &head_;
  TensorView rstd_, normed_, d_normed_, logits_, d_logits_, token_loss_;
  TensorView own_statistics_, statistics_, whole_in_, whole_out_;  // with several shards only
};

}  // namespace mw
