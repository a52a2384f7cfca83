#include "model/decoder_layer.h"

#include "model/layer_builder.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace mw {

TensorView token_view(const int32_t* tokens, int64_t count) {
  return TensorView(const_cast<int32_t*>(tokens), DType::i32, {count});
}

namespace {

Sequences sequences_of(const Batch& batch) {
  if (batch.document_starts == nullptr) return {batch.seq_len, {}, batch.past};
  return {batch.seq_len, token_view(batch.document_starts, batch.tokens()), batch.past};
}

}  // namespace

DecoderLayer::DecoderLayer(const Plan& plan, int64_t index, int64_t slot, ParamStore& params, TensorStore& store,
                           MeshComms& comms, const TokenShards& shards, WeightCache* weight_cache)
    : spec_(local_layer(plan, index)),
      shards_(shards),
      width_(plan.model.width),
      norm_eps_(static_cast<float>(plan.model.norm_eps)) {
  const Recompute mode = plan.run.recompute;
  const LayerRows act(mode, index, slot);
  const std::string param = fmt::format("layers.{}.", index);
  scratch_ = {store.fixed("work.normed"), store.fixed("work.branch"), store.fixed("work.d_branch"), {}, {}, {}, {}};
  if (store.has("work.dense_a")) scratch_.dense_a = store.fixed("work.dense_a");
  if (!shards.is_whole()) {
    scratch_.whole_in = store.fixed("work.whole_in");
    scratch_.whole_d_out = store.fixed("work.whole_d_out");
    scratch_.whole_out = store.fixed("work.whole_out");
  }
  x_ = store.fixed(act("x"));
  attn_rstd_ = store.fixed(act("attn_rstd"));
  x_mid_ = store.fixed(act("x_mid"));
  ffn_rstd_ = store.fixed(act("ffn_rstd"));
  keeps_norms_ = keeps_norms(mode);
  attn_in_ = keeps_norms_ ? store.fixed(act("attn_in")) : scratch_.normed;
  ffn_in_ = keeps_norms_ ? store.fixed(act("ffn_in")) : scratch_.normed;
  recompute_attention_ = is_recomputed(mode, "x_mid");
  recompute_hidden_ = is_recomputed(mode, "ffn.h");
  weight_part_ = weight_part(plan.run);
  ted_ = plan.mesh.ted && spec_.feed_forward == FeedForwardKind::moe;
  if (plan.run.train.qk_clip > 0) largest_logits_ = store.fixed(act(kLargestLogits));
  attn_gain_ = params.find(param + "attn_norm").master;
  d_attn_gain_ = params.find(param + "attn_norm").grad;
  ffn_gain_ = params.find(param + "ffn_norm").master;
  d_ffn_gain_ = params.find(param + "ffn_norm").grad;
  attention_ = make_attention(plan, index, slot, params, store, shards);
  if (spec_.feed_forward == FeedForwardKind::moe) {
    moe_ = make_moe_layer(plan, index, slot, params, store, comms, weight_cache);
  } else {
    h_ = store.fixed(act("ffn.h"));
    dense_ = feed_forward_weights(params, param + "ffn.");
  }
}

void DecoderLayer::place_experts(const Plan& plan, int64_t index, int64_t slot, ParamStore& params, TensorStore& store,
                                 MeshComms& comms, WeightCache* weight_cache) {
  if (moe_ != nullptr) moe_ = make_moe_layer(plan, index, slot, params, store, comms, weight_cache);
}

TensorView DecoderLayer::rows(TensorView view, int64_t tokens) const { return take_front(view, {tokens, width_}); }

TensorView DecoderLayer::input(int64_t batch_tokens) const { return rows(x_, shards_.own(batch_tokens).count); }

TensorView DecoderLayer::hidden(int64_t batch_tokens) const {
  return take_front(h_, {batch_tokens, halves_of(spec_.activation), spec_.dense_width});
}

void DecoderLayer::forward_attention(Stream& stream, const Batch& batch, TensorView largest_H) {
  const int64_t tokens = shards_.own(batch.tokens()).count;
  const TensorView x = rows(x_, tokens), normed = rows(attn_in_, tokens), branch = rows(scratch_.branch, tokens);
  rms_norm(stream, x, attn_gain_, norm_eps_, normed, take_front(attn_rstd_, {tokens}));
  const TensorView in = shards_.gather(stream, normed, batch.tokens(), scratch_.whole_in),
                   out = shards_.is_whole() ? branch : rows(scratch_.whole_out, batch.tokens());
  Sequences sequences = sequences_of(batch);
  sequences.largest_logits_H = largest_H;
  attention_->forward(stream, in, sequences, out);
  shards_.sum(stream, out, scratch_.whole_in, branch);
  add_rms_norm(stream, x, branch, ffn_gain_, norm_eps_, rows(x_mid_, tokens), rows(ffn_in_, tokens),
               take_front(ffn_rstd_, {tokens}));
}

void DecoderLayer::forward(Stream& stream, const Batch& batch, TensorView out_TD, bool training,
                           const RoutingTap* tap) {
  forward_attention(stream, batch, training ? largest_logits_ : TensorView());
  const int64_t tokens = shards_.own(batch.tokens()).count;
  const TensorView x_mid = rows(x_mid_, tokens), normed = rows(ffn_in_, tokens), branch = rows(scratch_.branch, tokens);
  if (moe_ != nullptr && !ted_) {
    moe_->forward(stream, normed, x_mid, out_TD, batch.seq_len, training, tap);
    return;
  }
  if (ted_) ted_forward(stream, batch, normed, branch, training, tap);
  else dense_forward(stream, batch.tokens(), normed, branch);
  add(stream, x_mid, branch, out_TD);
}

void DecoderLayer::ted_forward(Stream& stream, const Batch& batch, TensorView normed_TD, TensorView out_TD,
                               bool training, const RoutingTap* tap) {
  const TensorView in = shards_.gather(stream, normed_TD, batch.tokens(), scratch_.whole_in),
                   out = rows(scratch_.whole_out, batch.tokens());
  moe_->forward(stream, in, {}, out, batch.seq_len, training, tap);
  shards_.sum(stream, out, scratch_.whole_in, out_TD);
}

void DecoderLayer::ted_backward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView d_out_TD,
                                TensorView d_x_TD, GradientStore gradients) {
  const TensorView in = shards_.gather(stream, normed_TD, batch_tokens, scratch_.whole_in),
                   d_out = shards_.gather(stream, d_out_TD, batch_tokens, scratch_.whole_d_out),
                   d_in = rows(scratch_.whole_out, batch_tokens);
  moe_->backward(stream, in, d_out, d_in, aux, gradients);
  shards_.sum(stream, d_in, scratch_.whole_in, d_x_TD);
}

void DecoderLayer::dense_forward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView out_TD) {
  const TensorView in = shards_.gather(stream, normed_TD, batch_tokens, scratch_.whole_in),
                   out = shards_.is_whole() ? out_TD : rows(scratch_.whole_out, batch_tokens);
  feed_forward(stream, activation_rule(spec_), dense_, in, hidden(batch_tokens),
               take_front(scratch_.dense_a, {batch_tokens, spec_.dense_width}), out);
  shards_.sum(stream, out, scratch_.whole_in, out_TD);
}

void DecoderLayer::recompute_attention(Stream& stream, const Batch& batch) {
  if (!recompute_attention_) return;
  const TraceScope part(stream.trace(), "recompute");
  forward_attention(stream, batch, {});
}

void DecoderLayer::dense_backward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView d_out_TD,
                                  TensorView d_x_TD, Store store) {
  const TensorView d_out = shards_.gather(stream, d_out_TD, batch_tokens, scratch_.whole_d_out),
                   d_in = shards_.is_whole() ? d_x_TD : rows(scratch_.whole_out, batch_tokens);
  TensorView in;
  if (!weight_part_.dense) in = shards_.gather(stream, normed_TD, batch_tokens, scratch_.whole_in);
  if (recompute_hidden_) {
    const TraceScope part(stream.trace(), "recompute");
    feed_forward_hidden(stream, dense_, in, hidden(batch_tokens));
  }
  feed_forward_backward(stream, activation_rule(spec_), dense_, hidden(batch_tokens),
                        take_front(scratch_.dense_a, {batch_tokens, spec_.dense_width}), d_out, d_in, store);
  if (!weight_part_.dense) feed_forward_backward_up(stream, dense_, in, hidden(batch_tokens), store);
  shards_.sum(stream, d_in, scratch_.whole_in, d_x_TD);
}

void DecoderLayer::backward_feed_forward(Stream& stream, int64_t batch_tokens, TensorView d_x_TD,
                                         GradientStore gradients) {
  const int64_t tokens = shards_.own(batch_tokens).count;
  const TensorView normed = normed_again(stream, x_mid_, ffn_gain_, ffn_rstd_, ffn_in_, batch_tokens),
                   d_branch = rows(scratch_.d_branch, tokens), x_mid = rows(x_mid_, tokens),
                   rstd = take_front(ffn_rstd_, {tokens});
  if (ted_) ted_backward(stream, batch_tokens, normed, d_x_TD, d_branch, gradients);
  else if (moe_ != nullptr) moe_->backward(stream, normed, d_x_TD, d_branch, aux, gradients);
  else dense_backward(stream, batch_tokens, normed, d_x_TD, d_branch, gradients.store);
  rms_norm_backward(stream, x_mid, ffn_gain_, rstd, d_branch, d_x_TD, d_x_TD, d_ffn_gain_);
}

void DecoderLayer::backward_attention(Stream& stream, const Batch& batch, TensorView d_x_TD, TensorView d_input_TD,
                                      Store store) {
  const int64_t tokens = shards_.own(batch.tokens()).count;
  const TensorView d_branch = rows(scratch_.d_branch, tokens), x = rows(x_, tokens),
                   rstd = take_front(attn_rstd_, {tokens}),
                   d_out = shards_.gather(stream, d_x_TD, batch.tokens(), scratch_.whole_d_out),
                   d_in = shards_.is_whole() ? d_branch : rows(scratch_.whole_out, batch.tokens());
  attention_->backward(stream, sequences_of(batch), d_out, d_in, store);
  if (!weight_part_.attention) attention_weights(stream, batch, store);
  shards_.sum(stream, d_in, scratch_.whole_in, d_branch);
  rms_norm_backward(stream, x, attn_gain_, rstd, d_branch, d_x_TD, d_input_TD, d_attn_gain_);
}

TensorView DecoderLayer::normed_again(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView place,
                                      int64_t batch_tokens) {
  const int64_t tokens = shards_.own(batch_tokens).count;
  const TensorView normed = rows(place, tokens);
  if (!keeps_norms_) rms_norm_apply(stream, rows(x, tokens), gain, take_front(rstd, {tokens}), normed);
  return normed;
}

void DecoderLayer::attention_weights(Stream& stream, const Batch& batch, Store store) {
  const TensorView normed = normed_again(stream, x_, attn_gain_, attn_rstd_, attn_in_, batch.tokens());
  attention_->backward_inputs(stream, shards_.gather(stream, normed, batch.tokens(), scratch_.whole_in), store);
}

void DecoderLayer::backward_feed_forward_weights(Stream& stream, int64_t batch_tokens, GradientStore gradients) {
  if (!(moe_ != nullptr ? weight_part_.moe : weight_part_.dense)) return;
  const TensorView normed = normed_again(stream, x_mid_, ffn_gain_, ffn_rstd_, ffn_in_, batch_tokens);
  if (moe_ != nullptr && !ted_) return moe_->backward_up(stream, normed, gradients);
  const TensorView in = shards_.gather(stream, normed, batch_tokens, scratch_.whole_in);
  if (ted_) moe_->backward_up(stream, in, gradients);
  else feed_forward_backward_up(stream, dense_, in, hidden(batch_tokens), gradients.store);
}

void DecoderLayer::backward_attention_weights(Stream& stream, const Batch& batch, Store store) {
  if (weight_part_.attention) attention_weights(stream, batch, store);
}

}  // namespace mw
