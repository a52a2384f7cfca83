#include "model/attention_block.h"

#include "ops/elementwise.h"
#include "ops/norm.h"

namespace mw {

AttentionBlock::AttentionBlock(const AttentionSpec& spec, double norm_eps, AttentionWeights weights,
                               AttentionSaved saved, AttentionScratch scratch, bool defer_inputs)
    : spec_(spec),
      norm_eps_(static_cast<float>(norm_eps)),
      weights_(std::move(weights)),
      saved_(std::move(saved)),
      scratch_(std::move(scratch)),
      defer_inputs_(defer_inputs) {}

int64_t AttentionBlock::norm_width(int64_t heads) const {
  return spec_.qk_norm == QkNorm::per_head ? spec_.head_dim : heads * spec_.head_dim;
}

void AttentionBlock::normalise(Stream& stream, TensorView saved, TensorView gain, TensorView rstd, TensorView out,
                               int64_t width, bool store_statistics) {
  const int64_t rows = saved.numel() / width;
  const TensorView x = saved.reshape({rows, width}), y = out.reshape({rows, width}),
                   statistics = take_front(rstd, {rows});
  if (store_statistics) rms_norm(stream, x, gain, norm_eps_, y, statistics);
  else rms_norm_apply(stream, x, gain, statistics, y);
}

void AttentionBlock::rotate(Stream& stream, TensorView x_THh, const Sequences& sequences, RopeDirection direction,
                            TensorView y_THh) {
  rope(stream, x_THh, scratch_.rope_cos.slice(0, sequences.length), scratch_.rope_sin.slice(0, sequences.length),
       direction, y_THh, spec_.rope_pairs, sequences.first_T);
}

AttentionBlock::Views AttentionBlock::prepare(Stream& stream, int64_t tokens, const Sequences& sequences,
                                              bool store_statistics) {
  const TraceScope part(stream.trace(), "norm_and_rope");
  const int64_t h = spec_.head_dim;
  const TensorView q_saved = take_front(saved_.q, {tokens, spec_.heads, h}),
                   k_saved = take_front(saved_.k, {tokens, spec_.kv_heads, h}),
                   v_saved = take_front(saved_.v, {tokens, spec_.kv_heads, h});
  Views out;
  out.q = take_front(scratch_.q, {tokens, spec_.heads, h});
  out.k = take_front(scratch_.k, {tokens, spec_.kv_heads, h});
  out.v = v_saved;
  TensorView q = q_saved, k = k_saved;  // what the rotation reads
  if (spec_.qk_norm != QkNorm::none) {
    normalise(stream, q, weights_.q_gain, saved_.q_rstd, out.q, norm_width(spec_.heads), store_statistics);
    normalise(stream, k, weights_.k_gain, saved_.k_rstd, out.k, norm_width(spec_.kv_heads), store_statistics);
    q = out.q, k = out.k;
  }
  if (spec_.clip_qkv > 0) {
    const auto limit = static_cast<float>(spec_.clip_qkv);
    out.v = take_front(scratch_.v, {tokens, spec_.kv_heads, h});
    clamp(stream, q, limit, out.q);
    clamp(stream, k, limit, out.k);
    clamp(stream, v_saved, limit, out.v);
    q = out.q, k = out.k;
  }
  rotate(stream, q, sequences, RopeDirection::forward, out.q);
  rotate(stream, k, sequences, RopeDirection::forward, out.k);
  return out;
}

void AttentionBlock::forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) {
  const int64_t tokens = x_TD.dim(0), q_width = spec_.heads * spec_.head_dim,
                kv_width = spec_.kv_heads * spec_.head_dim;
  const TraceScope block(stream.trace(), "attention_block");
  {
    const TraceScope part(stream.trace(), "attention_inputs");
    matmul(stream, x_TD, weights_.wq, take_front(saved_.q, {tokens, q_width}));
    matmul(stream, x_TD, weights_.wk, take_front(saved_.k, {tokens, kv_width}));
    matmul(stream, x_TD, weights_.wv, take_front(saved_.v, {tokens, kv_width}));
  }
  const Views in = prepare(stream, tokens, sequences, true);
  const TensorView o = take_front(saved_.o, {tokens, spec_.heads, spec_.head_dim});
  attention(stream, attention_shape(spec_, tokens, sequences.length, sequences.has_documents()), in.q, in.k, in.v, o,
            take_front(saved_.lse, {spec_.heads, tokens}), sequences.first_T);
  const TraceScope part(stream.trace(), "attention_output");
  matmul(stream, o.reshape({tokens, q_width}), weights_.wo, out_TD);
}

void AttentionBlock::backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD) {
  const int64_t tokens = d_out_TD.dim(0), h = spec_.head_dim, q_width = spec_.heads * h, kv_width = spec_.kv_heads * h;
  const TensorView o = take_front(saved_.o, {tokens, spec_.heads, h}),
                   d_o = take_front(scratch_.d_o, {tokens, spec_.heads, h});
  const TraceScope block(stream.trace(), "attention_block_backward");
  {
    const TraceScope part(stream.trace(), "attention_output_backward");
    matmul_d_input(stream, d_out_TD, weights_.wo, d_o.reshape({tokens, q_width}));
    matmul_d_weight(stream, d_out_TD, o.reshape({tokens, q_width}), weights_.d_wo);
  }

  const Views in = prepare(stream, tokens, sequences, false);
  const TensorView d_q = take_front(scratch_.d_q, {tokens, spec_.heads, h}),
                   d_k = take_front(scratch_.d_k, {tokens, spec_.kv_heads, h}),
                   d_v = take_front(scratch_.d_v, {tokens, spec_.kv_heads, h});
  attention_backward(stream, attention_shape(spec_, tokens, sequences.length, sequences.has_documents()), in.q, in.k,
                     in.v, o, take_front(saved_.lse, {spec_.heads, tokens}), d_o, d_q, d_k, d_v, sequences.first_T);
  rotate(stream, d_q, sequences, RopeDirection::backward, d_q);
  rotate(stream, d_k, sequences, RopeDirection::backward, d_k);

  const TensorView q_saved = take_front(saved_.q, {tokens, spec_.heads, h}),
                   k_saved = take_front(saved_.k, {tokens, spec_.kv_heads, h});
  if (spec_.clip_qkv > 0) {
    const auto limit = static_cast<float>(spec_.clip_qkv);
    clamp_backward(stream, take_front(saved_.v, {tokens, spec_.kv_heads, h}), limit, d_v);
    if (spec_.qk_norm == QkNorm::none) {
      clamp_backward(stream, q_saved, limit, d_q);
      clamp_backward(stream, k_saved, limit, d_k);
    } else {
      // The clamp saw the normed values: rebuild them where the rotated ones were.
      normalise(stream, q_saved, weights_.q_gain, saved_.q_rstd, in.q, norm_width(spec_.heads), false);
      normalise(stream, k_saved, weights_.k_gain, saved_.k_rstd, in.k, norm_width(spec_.kv_heads), false);
      clamp_backward(stream, in.q, limit, d_q);
      clamp_backward(stream, in.k, limit, d_k);
    }
  }
  if (spec_.qk_norm != QkNorm::none) {
    const auto backward_norm = [&](TensorView saved, TensorView gain, TensorView rstd, TensorView d, TensorView d_gain,
                                   int64_t width) {
      const int64_t rows = saved.numel() / width;
      const TensorView d_rows = d.reshape({rows, width});
      rms_norm_backward(stream, saved.reshape({rows, width}), gain, take_front(rstd, {rows}), d_rows, {}, d_rows,
                        d_gain);
    };
    backward_norm(q_saved, weights_.q_gain, saved_.q_rstd, d_q, weights_.d_q_gain, norm_width(spec_.heads));
    backward_norm(k_saved, weights_.k_gain, saved_.k_rstd, d_k, weights_.d_k_gain, norm_width(spec_.kv_heads));
  }

  const TraceScope part(stream.trace(), "attention_inputs_backward");
  gradients_ = {d_q.reshape({tokens, q_width}), d_k.reshape({tokens, kv_width}), d_v.reshape({tokens, kv_width})};
  const TensorView branch = take_front(scratch_.branch, {tokens, d_x_TD.cols()});
  matmul_d_input(stream, gradients_.q, weights_.wq, d_x_TD);
  matmul_d_input(stream, gradients_.k, weights_.wk, branch);
  add(stream, d_x_TD, branch, d_x_TD);
  matmul_d_input(stream, gradients_.v, weights_.wv, branch);
  add(stream, d_x_TD, branch, d_x_TD);
  if (!defer_inputs_) return;
  const auto keep = [&](TensorView& gradient, TensorView saved) {
    const TensorView place = take_front(saved, {tokens, gradient.cols()});
    stream.queue().copy(place.data, gradient.data, static_cast<size_t>(gradient.bytes()));
    gradient = place;
  };
  keep(gradients_.q, saved_.q);
  keep(gradients_.k, saved_.k);
  keep(gradients_.v, saved_.v);
}

void AttentionBlock::backward_inputs(Stream& stream, TensorView x_TD) {
  const TraceScope part(stream.trace(), "attention_inputs_d_weight");
  matmul_d_weight(stream, gradients_.q, x_TD, weights_.d_wq);
  matmul_d_weight(stream, gradients_.k, x_TD, weights_.d_wk);
  matmul_d_weight(stream, gradients_.v, x_TD, weights_.d_wv);
}

}  // namespace mw
