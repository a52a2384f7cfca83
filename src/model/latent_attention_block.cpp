#include "model/latent_attention_block.h"

#include "ops/attention_logits.h"
#include "ops/columns.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace mw {
namespace {

// The norms of latents do not follow the model's: DeepSeek's have their own.
constexpr float kNormEps = 1e-6f;

// The normed latent; its statistics are stored in forward and read in backward.
void normalise(Stream& stream, TensorView latent, TensorView gain, TensorView rstd, TensorView out,
               bool store_statistics) {
  const TensorView statistics = take_front(rstd, {latent.dim(0)});
  if (store_statistics) rms_norm(stream, latent, gain, kNormEps, out, statistics);
  else rms_norm_apply(stream, latent, gain, statistics, out);
}

TensorView flat(TensorView heads) { return heads.reshape({heads.dim(0), heads.dim(1) * heads.dim(2)}); }

}  // namespace

LatentAttentionBlock::LatentAttentionBlock(const AttentionSpec& spec, LatentWeights weights, LatentSaved saved,
                                           LatentScratch scratch, KeyValueCache cache)
    : spec_(spec),
      weights_(std::move(weights)),
      saved_(std::move(saved)),
      scratch_(std::move(scratch)),
      cache_(cache) {}

TensorView LatentAttentionBlock::heads(TensorView all, int64_t tokens, int64_t width) const {
  return take_front(all, {tokens, spec_.heads, width});
}

LatentAttentionBlock::Kept LatentAttentionBlock::kept(int64_t tokens) const {
  const LatentSpec& l = spec_.latent;
  return {compresses_queries() ? take_front(saved_.c_q, {tokens, l.q_rank})
                               : take_front(saved_.q, {tokens, spec_.heads * spec_.head_dim}),
          take_front(saved_.c_kv, {tokens, l.kv_rank}), take_front(saved_.k_rope, {tokens, l.rope_dim})};
}

void LatentAttentionBlock::rotate(Stream& stream, TensorView heads_THh, const Sequences& sequences,
                                  RopeDirection direction) {
  const int64_t first = sequences.first_position(), length = sequences.length;
  rope(stream, heads_THh, scratch_.rope_cos.slice(first, length), scratch_.rope_sin.slice(first, length), direction,
       heads_THh, spec_.rope_pairs, sequences.first_T, heads_THh.dim(2) - spec_.latent.rope_dim);
}

LatentAttentionBlock::Views LatentAttentionBlock::prepare(Stream& stream, int64_t tokens, const Sequences& sequences,
                                                          bool store_statistics) {
  const TraceScope part(stream.trace(), "latents_to_heads");
  const LatentSpec& l = spec_.latent;
  const Kept from = kept(tokens);
  Views out{heads(compresses_queries() ? scratch_.q : saved_.q, tokens, spec_.head_dim),
            heads(scratch_.k, tokens, spec_.head_dim), heads(scratch_.v, tokens, l.value_dim)};
  if (compresses_queries()) {
    const TensorView latent = take_front(scratch_.latent_q, {tokens, l.q_rank});
    normalise(stream, from.queries, weights_.q_gain, saved_.q_rstd, latent, store_statistics);
    matmul(stream, latent, weights_.wq_b, flat(out.q));
    rotate(stream, out.q, sequences, RopeDirection::forward);
  }
  const TensorView latent = take_front(scratch_.latent_kv, {tokens, l.kv_rank}),
                   kv = heads(scratch_.kv_heads, tokens, l.nope_dim + l.value_dim);
  normalise(stream, from.c_kv, weights_.kv_gain, saved_.kv_rstd, latent, store_statistics);
  matmul(stream, latent, weights_.wkv_b, flat(kv));
  copy_columns(stream, {kv, 0}, {out.k, 0}, l.nope_dim);
  copy_columns(stream, {from.k_rope, 0}, {out.k, l.nope_dim}, l.rope_dim);
  copy_columns(stream, {kv, l.nope_dim}, {out.v, 0}, l.value_dim);
  return out;
}

void LatentAttentionBlock::forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) {
  const LatentSpec& l = spec_.latent;
  const int64_t tokens = x_TD.dim(0);
  const TraceScope block(stream.trace(), "attention_block");
  {
    const TraceScope part(stream.trace(), "attention_inputs");
    const Kept out = kept(tokens);
    matmul(stream, x_TD, compresses_queries() ? weights_.wq_a : weights_.wq, out.queries);
    if (!compresses_queries())
      rotate(stream, heads(saved_.q, tokens, spec_.head_dim), sequences, RopeDirection::forward);
    const TensorView both = take_front(scratch_.kv_a, {tokens, l.kv_rank + l.rope_dim});
    matmul(stream, x_TD, weights_.wkv_a, both);
    copy_columns(stream, {both, 0}, {out.c_kv, 0}, l.kv_rank);
    copy_columns(stream, {both, l.kv_rank}, {out.k_rope, 0}, l.rope_dim);
    rotate(stream, out.k_rope.reshape({tokens, 1, l.rope_dim}), sequences, RopeDirection::forward);
  }
  Views in = prepare(stream, tokens, sequences, true);
  const TensorView o = heads(saved_.o, tokens, l.value_dim);
  const AttentionShape shape = attention_shape(spec_, tokens, sequences, sequences.has_documents());
  if (sequences.past) cache_.extend(stream, shape, in.k, in.v);
  attention(stream, shape, in.q, in.k, in.v, o, take_front(saved_.lse, {spec_.heads, tokens}), sequences.first_T);
  if (sequences.largest_logits_H.data != nullptr)
    largest_logits(stream, shape, in.q, in.k, sequences.largest_logits_H, sequences.first_T);
  const TraceScope part(stream.trace(), "attention_output");
  matmul(stream, flat(o), weights_.wo, out_TD);
}

void LatentAttentionBlock::backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD,
                                    Store store) {
  const int64_t tokens = d_out_TD.dim(0), value = spec_.latent.value_dim;
  const TensorView o = heads(saved_.o, tokens, value), d_o = heads(scratch_.d_o, tokens, value);
  const TraceScope block(stream.trace(), "attention_block_backward");
  {
    const TraceScope part(stream.trace(), "attention_output_backward");
    matmul_d_input(stream, d_out_TD, weights_.wo, flat(d_o));
    matmul_d_weight(stream, d_out_TD, flat(o), weights_.d_wo, store);
  }
  const Views in = prepare(stream, tokens, sequences, false);
  const TensorView d_q = heads(scratch_.d_q, tokens, spec_.head_dim), d_k = heads(scratch_.d_k, tokens, spec_.head_dim),
                   d_v = heads(scratch_.d_v, tokens, value);
  attention_backward(stream, attention_shape(spec_, tokens, sequences, sequences.has_documents()), in.q, in.k, in.v, o,
                     take_front(saved_.lse, {spec_.heads, tokens}), d_o, d_q, d_k, d_v, sequences.first_T);
  backward_queries(stream, d_q, sequences, store);
  backward_keys(stream, d_k, d_v, sequences, store);

  const TraceScope part(stream.trace(), "attention_inputs_backward");
  const Kept gradients = kept(tokens);
  matmul_d_input(stream, join(stream, gradients), weights_.wkv_a, d_x_TD);
  matmul_d_input(stream, gradients.queries, compresses_queries() ? weights_.wq_a : weights_.wq, d_x_TD,
                 Store::accumulate);
}

void LatentAttentionBlock::backward_queries(Stream& stream, TensorView d_q_THh, const Sequences& sequences,
                                            Store store) {
  const TraceScope part(stream.trace(), "queries_backward");
  rotate(stream, d_q_THh, sequences, RopeDirection::backward);
  const int64_t tokens = d_q_THh.dim(0), rank = spec_.latent.q_rank;
  const TensorView queries = kept(tokens).queries;
  if (!compresses_queries()) {
    stream.queue().copy(queries.data, d_q_THh.data, static_cast<size_t>(queries.bytes()));
    return;
  }
  const TensorView d_latent = take_front(scratch_.d_latent, {tokens, rank});
  matmul_d_weight(stream, flat(d_q_THh), take_front(scratch_.latent_q, {tokens, rank}), weights_.d_wq_b, store);
  matmul_d_input(stream, flat(d_q_THh), weights_.wq_b, d_latent);
  backward_norm(stream, queries, weights_.q_gain, saved_.q_rstd, d_latent, weights_.d_q_gain);
}

void LatentAttentionBlock::backward_keys(Stream& stream, TensorView d_k_THh, TensorView d_v_THv,
                                         const Sequences& sequences, Store store) {
  const TraceScope part(stream.trace(), "keys_values_backward");
  const LatentSpec& l = spec_.latent;
  const int64_t tokens = d_k_THh.dim(0);
  const Kept to = kept(tokens);
  const TensorView d_kv = heads(scratch_.kv_heads, tokens, l.nope_dim + l.value_dim),
                   d_latent = take_front(scratch_.d_latent, {tokens, l.kv_rank});
  copy_columns(stream, {d_k_THh, 0}, {d_kv, 0}, l.nope_dim);
  copy_columns(stream, {d_v_THv, 0}, {d_kv, l.nope_dim}, l.value_dim);
  sum_columns(stream, {d_k_THh, l.nope_dim}, {to.k_rope, 0}, l.rope_dim);
  rotate(stream, to.k_rope.reshape({tokens, 1, l.rope_dim}), sequences, RopeDirection::backward);
  matmul_d_weight(stream, flat(d_kv), take_front(scratch_.latent_kv, {tokens, l.kv_rank}), weights_.d_wkv_b, store);
  matmul_d_input(stream, flat(d_kv), weights_.wkv_b, d_latent);
  backward_norm(stream, to.c_kv, weights_.kv_gain, saved_.kv_rstd, d_latent, weights_.d_kv_gain);
}

void LatentAttentionBlock::backward_norm(Stream& stream, TensorView latent, TensorView gain, TensorView rstd,
                                         TensorView d_normed, TensorView d_gain) {
  rms_norm_backward(stream, latent, gain, take_front(rstd, {latent.dim(0)}), d_normed, {}, d_normed, d_gain);
  stream.queue().copy(latent.data, d_normed.data, static_cast<size_t>(latent.bytes()));
}

TensorView LatentAttentionBlock::join(Stream& stream, const Kept& parts) {
  const LatentSpec& l = spec_.latent;
  const TensorView both = take_front(scratch_.kv_a, {parts.c_kv.dim(0), l.kv_rank + l.rope_dim});
  copy_columns(stream, {parts.c_kv, 0}, {both, 0}, l.kv_rank);
  copy_columns(stream, {parts.k_rope, 0}, {both, l.kv_rank}, l.rope_dim);
  return both;
}

void LatentAttentionBlock::backward_inputs(Stream& stream, TensorView x_TD, Store store) {
  const TraceScope part(stream.trace(), "attention_inputs_d_weight");
  const Kept gradients = kept(x_TD.dim(0));
  matmul_d_weight(stream, gradients.queries, x_TD, compresses_queries() ? weights_.d_wq_a : weights_.d_wq, store);
  matmul_d_weight(stream, join(stream, gradients), x_TD, weights_.d_wkv_a, store);
}

}  // namespace mw
