#include "model/attention_block.h"

#include "ops/attention_logits.h"
#include "ops/bias.h"
#include "ops/columns.h"
#include "ops/elementwise.h"
#include "ops/sinks.h"
#include "ops/window.h"

namespace mw {

AttentionBlock::AttentionBlock(const AttentionSpec& spec, double norm_eps, AttentionWeights weights,
                               AttentionSaved saved, AttentionScratch scratch, HeadSums head_sums, KeyValueCache cache,
                               bool defer_inputs, bool keeps_prepared)
    : spec_(spec),
      norm_eps_(static_cast<float>(norm_eps)),
      weights_(std::move(weights)),
      saved_(std::move(saved)),
      scratch_(std::move(scratch)),
      head_sums_(std::move(head_sums)),
      cache_(cache),
      defer_inputs_(defer_inputs),
      keeps_prepared_(keeps_prepared) {}

TensorView AttentionBlock::norm_rows(TensorView x_THh) const {
  const int64_t heads = x_THh.dim(0) * x_THh.dim(1), h = x_THh.dim(2);
  if (spec_.qk_norm == QkNorm::per_head) return x_THh.reshape({heads, h});
  return x_THh.reshape({x_THh.dim(0), x_THh.dim(1) * h});
}

AttentionBlock::Sums AttentionBlock::sum_products(Stream& stream, const Views& a, const Views& b, bool with_gains) {
  if (head_sums_.shards == nullptr) return {};
  const TensorView own = take_front(head_sums_.own_2T, {2, a.q.dim(0)}), q = own.at(0), k = own.at(1);
  row_products(stream, norm_rows(a.q), norm_rows(b.q), with_gains ? weights_.q_gain : TensorView(), q);
  row_products(stream, norm_rows(a.k), norm_rows(b.k), with_gains ? weights_.k_gain : TensorView(), k);
  head_sums_.shards->add_up(stream, own, head_sums_.of_ranks);
  return {{q, head_sums_.q_width}, {k, head_sums_.k_width}};
}

void AttentionBlock::normalise(Stream& stream, const Views& saved, const Views& out, bool store_statistics) {
  const Sums squares = store_statistics ? sum_products(stream, saved, saved, false) : Sums();
  const auto run = [&](TensorView x_THh, TensorView gain, TensorView rstd, TensorView y_THh, const RowSums& sums) {
    const TensorView x = norm_rows(x_THh), y = norm_rows(y_THh), statistics = take_front(rstd, {x.rows()});
    if (store_statistics) rms_norm(stream, x, gain, norm_eps_, y, statistics, sums);
    else rms_norm_apply(stream, x, gain, statistics, y);
  };
  run(saved.q, weights_.q_gain, saved_.q_rstd, out.q, squares.q);
  run(saved.k, weights_.k_gain, saved_.k_rstd, out.k, squares.k);
}

void AttentionBlock::normalise_backward(Stream& stream, const Views& saved, const Views& d) {
  const Sums products = sum_products(stream, d, saved, true);
  const auto run = [&](TensorView x_THh, TensorView gain, TensorView rstd, TensorView d_THh, TensorView d_gain,
                       const RowSums& sums) {
    const TensorView x = norm_rows(x_THh), d_rows = norm_rows(d_THh);
    rms_norm_backward(stream, x, gain, take_front(rstd, {x.rows()}), d_rows, {}, d_rows, d_gain, sums);
  };
  run(saved.q, weights_.q_gain, saved_.q_rstd, d.q, weights_.d_q_gain, products.q);
  run(saved.k, weights_.k_gain, saved_.k_rstd, d.k, weights_.d_k_gain, products.k);
}

Rotation AttentionBlock::rotation(const Sequences& sequences) const {
  const int64_t first = sequences.first_position(), length = sequences.length;
  return {scratch_.rope_cos.slice(first, length), scratch_.rope_sin.slice(first, length), spec_.rope_pairs,
          sequences.first_T};
}

void AttentionBlock::normalise_and_rotate(Stream& stream, const Views& saved, const Views& out,
                                          const Sequences& sequences, bool store_statistics) {
  const Rotation by = rotation(sequences);
  const auto run = [&](TensorView x_THh, TensorView gain, TensorView rstd, TensorView y_THh) {
    const TensorView statistics = take_front(rstd, {x_THh.dim(0) * x_THh.dim(1)});
    if (store_statistics) norm_rope(stream, x_THh, gain, norm_eps_, by, y_THh, statistics);
    else norm_rope_apply(stream, x_THh, gain, statistics, by, y_THh);
  };
  run(saved.q, weights_.q_gain, saved_.q_rstd, out.q);
  run(saved.k, weights_.k_gain, saved_.k_rstd, out.k);
}

void AttentionBlock::rotate(Stream& stream, TensorView x_THh, const Sequences& sequences, RopeDirection direction,
                            TensorView y_THh) {
  const int64_t rotated = spec_.rope_dim(), rest = spec_.head_dim - rotated;
  if (rest > 0 && y_THh.data != x_THh.data) copy_columns(stream, {x_THh, rotated}, {y_THh, rotated}, rest);
  const Rotation by = rotation(sequences);
  rope(stream, x_THh, by.cos_Sp, by.sin_Sp, direction, y_THh, by.pairs, by.first_T);
}

TensorView AttentionBlock::first_keys(Stream& stream, int64_t tokens, const Sequences& sequences) const {
  const int64_t past = sequences.first_position();
  if (!spec_.has_window(past + sequences.length)) return sequences.first_T;
  const TensorView first = take_front(scratch_.first_keys, {tokens});
  first_keys_of_window(stream, sequences.length, spec_.window, sequences.first_T, first, past);
  return first;
}

AttentionBlock::Views AttentionBlock::prepared(int64_t tokens) const {
  const int64_t h = spec_.head_dim;
  return {take_front(scratch_.q, {tokens, spec_.heads, h}), take_front(scratch_.k, {tokens, spec_.kv_heads, h}),
          take_front(spec_.clip_qkv > 0 ? scratch_.v : saved_.v, {tokens, spec_.kv_heads, h})};
}

AttentionBlock::Views AttentionBlock::prepare(Stream& stream, int64_t tokens, const Sequences& sequences,
                                              bool store_statistics) {
  const Views out = prepared(tokens);
  if (keeps_prepared_ && !store_statistics) return out;
  const TraceScope part(stream.trace(), "norm_and_rope");
  const int64_t h = spec_.head_dim;
  const TensorView q_saved = take_front(saved_.q, {tokens, spec_.heads, h}),
                   k_saved = take_front(saved_.k, {tokens, spec_.kv_heads, h}),
                   v_saved = take_front(saved_.v, {tokens, spec_.kv_heads, h});
  if (spec_.rotates_normed_heads()) {
    normalise_and_rotate(stream, {q_saved, k_saved, {}}, out, sequences, store_statistics);
    return out;
  }
  TensorView q = q_saved, k = k_saved;  // what the rotation reads
  if (spec_.norm_after_rotary) {
    rotate(stream, q, sequences, RopeDirection::forward, out.q);
    rotate(stream, k, sequences, RopeDirection::forward, out.k);
    normalise(stream, out, out, store_statistics);
    return out;
  }
  if (spec_.qk_norm != QkNorm::none) {
    normalise(stream, {q, k, {}}, out, store_statistics);
    q = out.q, k = out.k;
  }
  if (spec_.clip_qkv > 0) {
    const auto limit = static_cast<float>(spec_.clip_qkv);
    clamp(stream, q, limit, out.q);
    clamp(stream, k, limit, out.k);
    clamp(stream, v_saved, limit, out.v);
    q = out.q, k = out.k;
  }
  rotate(stream, q, sequences, RopeDirection::forward, out.q);
  rotate(stream, k, sequences, RopeDirection::forward, out.k);
  return out;
}

void AttentionBlock::prepare_backward(Stream& stream, int64_t tokens, const Sequences& sequences, const Views& in,
                                      const Views& d) {
  const int64_t h = spec_.head_dim;
  const TensorView q_saved = take_front(saved_.q, {tokens, spec_.heads, h}),
                   k_saved = take_front(saved_.k, {tokens, spec_.kv_heads, h});
  if (spec_.rotates_normed_heads()) {
    const Rotation by = rotation(sequences);
    const auto run = [&](TensorView x_THh, TensorView gain, TensorView rstd, TensorView d_THh, TensorView d_gain) {
      const TensorView statistics = take_front(rstd, {x_THh.dim(0) * x_THh.dim(1)});
      norm_rope_backward(stream, x_THh, gain, statistics, by, d_THh, d_gain);
    };
    run(q_saved, weights_.q_gain, saved_.q_rstd, d.q, weights_.d_q_gain);
    run(k_saved, weights_.k_gain, saved_.k_rstd, d.k, weights_.d_k_gain);
    return;
  }
  if (spec_.norm_after_rotary) {
    // The norm saw the rotated values: rebuild them where the normed ones were.
    rotate(stream, q_saved, sequences, RopeDirection::forward, in.q);
    rotate(stream, k_saved, sequences, RopeDirection::forward, in.k);
    normalise_backward(stream, in, d);
  }
  rotate(stream, d.q, sequences, RopeDirection::backward, d.q);
  rotate(stream, d.k, sequences, RopeDirection::backward, d.k);
  if (spec_.clip_qkv > 0) {
    const auto limit = static_cast<float>(spec_.clip_qkv);
    clamp_backward(stream, take_front(saved_.v, {tokens, spec_.kv_heads, h}), limit, d.v);
    if (spec_.qk_norm == QkNorm::none) {
      clamp_backward(stream, q_saved, limit, d.q);
      clamp_backward(stream, k_saved, limit, d.k);
    } else {
      // The clamp saw the normed values: rebuild them where the rotated ones were.
      normalise(stream, {q_saved, k_saved, {}}, in, false);
      clamp_backward(stream, in.q, limit, d.q);
      clamp_backward(stream, in.k, limit, d.k);
    }
  }
  if (spec_.qk_norm != QkNorm::none && !spec_.norm_after_rotary) normalise_backward(stream, {q_saved, k_saved, {}}, d);
}

void AttentionBlock::forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) {
  const int64_t tokens = x_TD.dim(0), q_width = spec_.heads * spec_.head_dim,
                kv_width = spec_.kv_heads * spec_.head_dim;
  const TraceScope block(stream.trace(), "attention_block");
  {
    const TraceScope part(stream.trace(), "attention_inputs");
    const auto project = [&](const Weight& weight, TensorView bias, TensorView out) {
      matmul(stream, x_TD, weight, out);
      if (bias.data != nullptr) add_bias(stream, out, bias);
    };
    project(weights_.wq, weights_.bq, take_front(saved_.q, {tokens, q_width}));
    project(weights_.wk, weights_.bk, take_front(saved_.k, {tokens, kv_width}));
    project(weights_.wv, weights_.bv, take_front(saved_.v, {tokens, kv_width}));
  }
  Views in = prepare(stream, tokens, sequences, true);
  const TensorView o = take_front(saved_.o, {tokens, spec_.heads, spec_.head_dim});
  const TensorView first = first_keys(stream, tokens, sequences);
  const AttentionShape shape = attention_shape(spec_, tokens, sequences, first.data != nullptr);
  const TensorView lse = take_front(saved_.lse, {spec_.heads, tokens});
  if (sequences.past) cache_.extend(stream, shape, in.k, in.v);
  attention(stream, shape, in.q, in.k, in.v, o, lse, first);
  if (sequences.largest_logits_H.data != nullptr)
    largest_logits(stream, shape, in.q, in.k, sequences.largest_logits_H, first);
  if (spec_.sinks) add_sinks(stream, shape, weights_.sinks, o, lse);
  const TraceScope part(stream.trace(), "attention_output");
  matmul(stream, o.reshape({tokens, q_width}), weights_.wo, out_TD);
  if (weights_.bo.data != nullptr) add_bias(stream, out_TD, weights_.bo);
}

void AttentionBlock::backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD,
                              Store store) {
  const int64_t tokens = d_out_TD.dim(0), h = spec_.head_dim, q_width = spec_.heads * h, kv_width = spec_.kv_heads * h;
  const TensorView o = take_front(saved_.o, {tokens, spec_.heads, h}),
                   d_o = take_front(scratch_.d_o, {tokens, spec_.heads, h});
  const TraceScope block(stream.trace(), "attention_block_backward");
  {
    const TraceScope part(stream.trace(), "attention_output_backward");
    matmul_d_input(stream, d_out_TD, weights_.wo, d_o.reshape({tokens, q_width}));
    matmul_d_weight(stream, d_out_TD, o.reshape({tokens, q_width}), weights_.d_wo, store);
    if (weights_.d_bo.data != nullptr) bias_backward(stream, d_out_TD, weights_.d_bo);
  }

  const Views in = prepare(stream, tokens, sequences, false);
  const TensorView d_q = take_front(scratch_.d_q, {tokens, spec_.heads, h}),
                   d_k = take_front(scratch_.d_k, {tokens, spec_.kv_heads, h}),
                   d_v = take_front(scratch_.d_v, {tokens, spec_.kv_heads, h});
  const TensorView first = first_keys(stream, tokens, sequences);
  const AttentionShape shape = attention_shape(spec_, tokens, sequences, first.data != nullptr);
  const TensorView lse = take_front(saved_.lse, {spec_.heads, tokens});
  const TensorView delta = spec_.sinks ? take_front(scratch_.delta, {spec_.heads, tokens}) : TensorView();
  attention_backward(stream, shape, in.q, in.k, in.v, o, lse, d_o, d_q, d_k, d_v, first, delta);
  if (spec_.sinks) sinks_backward(stream, shape, o.dtype, weights_.sinks, lse, delta, weights_.d_sinks);
  prepare_backward(stream, tokens, sequences, in, {d_q, d_k, d_v});

  const TraceScope part(stream.trace(), "attention_inputs_backward");
  gradients_ = {d_q.reshape({tokens, q_width}), d_k.reshape({tokens, kv_width}), d_v.reshape({tokens, kv_width})};
  if (weights_.d_bq.data != nullptr) {
    bias_backward(stream, gradients_.q, weights_.d_bq);
    bias_backward(stream, gradients_.k, weights_.d_bk);
    bias_backward(stream, gradients_.v, weights_.d_bv);
  }
  matmul_d_input(stream, gradients_.q, weights_.wq, d_x_TD);
  matmul_d_input(stream, gradients_.k, weights_.wk, d_x_TD, Store::accumulate);
  matmul_d_input(stream, gradients_.v, weights_.wv, d_x_TD, Store::accumulate);
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

void AttentionBlock::backward_inputs(Stream& stream, TensorView x_TD, Store store) {
  const TraceScope part(stream.trace(), "attention_inputs_d_weight");
  matmul_d_weight(stream, gradients_.q, x_TD, weights_.d_wq, store);
  matmul_d_weight(stream, gradients_.k, x_TD, weights_.d_wk, store);
  matmul_d_weight(stream, gradients_.v, x_TD, weights_.d_wv, store);
}

}  // namespace mw
