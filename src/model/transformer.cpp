#include "model/transformer.h"

#include <algorithm>

#include "model/layer_builder.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace mw {
namespace {

// Operators read tokens through views, which are not const.
TensorView token_view(const int32_t* tokens, int64_t count) {
  return TensorView(const_cast<int32_t*>(tokens), DType::i32, {count});
}

}  // namespace

Transformer::Transformer(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream, const Reserve& reserve)
    : plan_(plan), params_(params), stream_(stream), store_(to_slots(plan.activation_rows), reserve) {
  const TensorView ops = store_.fixed("work.ops");
  stream_.workspace().attach(ops.data, static_cast<size_t>(ops.bytes()));
  step_tokens_ = {store_.fixed("data.ids"), store_.fixed("data.labels")};
  final_x_ = store_.fixed("act.final_x");
  final_rstd_ = store_.fixed("act.final_rstd");
  normed_ = store_.fixed("work.normed");
  branch_ = store_.fixed("work.branch");
  d_x_ = store_.fixed("work.d_x");
  d_branch_ = store_.fixed("work.d_branch");
  if (store_.has("work.dense_a")) dense_a_ = store_.fixed("work.dense_a");
  logits_ = store_.fixed("work.logits");
  d_logits_ = plan_.run.dtype() == DType::bf16 ? store_.fixed("work.d_logits_bf16") : logits_;
  token_loss_ = store_.fixed("work.token_loss");

  const AttentionSpec& first = plan_.model.layers.front().attention;
  for (const LayerSpec& layer : plan_.model.layers)
    if (layer.attention.head_dim != first.head_dim || layer.attention.rope_theta != first.rope_theta)
      fail(Exit::unsupported, "layers with different head_dim or rope_theta are not built yet",
           "docs/limits.md lists what is missing");
  make_rope_table(static_cast<float>(first.rope_theta), store_.fixed("work.rope_cos"), store_.fixed("work.rope_sin"));
  for (int64_t i = 0; i < plan_.model.layer_count(); ++i) build_layer(i, comms);
  const std::vector<std::string> unused = store_.unused();
  MW_CHECK(unused.empty(), "the table of bytes has {} rows that nothing uses, first {}", unused.size(), unused.front());
}

void Transformer::build_layer(int64_t index, MeshComms& comms) {
  const LayerSpec& spec = plan_.model.layers[static_cast<size_t>(index)];
  const std::string act = fmt::format("act.{}.", index), param = fmt::format("layers.{}.", index);
  Layer layer;
  layer.x = store_.fixed(act + "x");
  layer.attn_rstd = store_.fixed(act + "attn_rstd");
  layer.x_mid = store_.fixed(act + "x_mid");
  layer.ffn_rstd = store_.fixed(act + "ffn_rstd");
  layer.attn_gain = params_.find(param + "attn_norm").master;
  layer.d_attn_gain = params_.find(param + "attn_norm").grad;
  layer.ffn_gain = params_.find(param + "ffn_norm").master;
  layer.d_ffn_gain = params_.find(param + "ffn_norm").grad;

  layer.attention = make_attention_block(plan_, index, params_, store_);
  if (spec.feed_forward == FeedForwardKind::dense) {
    layer.h = store_.fixed(act + "h");
    layer.dense = feed_forward_weights(params_, param + "ffn.");
    layers_.push_back(std::move(layer));
    return;
  }

  layer.moe = make_moe_layer(plan_, index, params_, store_, comms);
  moe_index_.push_back(index);
  layers_.push_back(std::move(layer));
}

TensorView Transformer::rows(TensorView view, int64_t tokens) const {
  return take_front(view, {tokens, plan_.model.width});
}

const Weight& Transformer::head_weight() const {
  return params_.find(plan_.model.tie_embeddings ? "embed" : "head").weights[0];
}

void Transformer::forward_layer(Layer& layer, const LayerSpec& spec, TensorView out_TD, const Batch& batch,
                                bool training, const RoutingTap* tap) {
  const int64_t tokens = batch.tokens();
  const TensorView x = rows(layer.x, tokens), x_mid = rows(layer.x_mid, tokens), normed = rows(normed_, tokens),
                   branch = rows(branch_, tokens);
  const auto eps = static_cast<float>(plan_.model.norm_eps);
  rms_norm(stream_, x, layer.attn_gain, eps, normed, take_front(layer.attn_rstd, {tokens}));
  layer.attention->forward(stream_, normed, batch.seq_len, branch);
  add_rms_norm(stream_, x, branch, layer.ffn_gain, eps, x_mid, normed, take_front(layer.ffn_rstd, {tokens}));
  if (layer.moe != nullptr) {
    layer.moe->forward(stream_, normed, x_mid, out_TD, batch.seq_len, training, tap);
    return;
  }
  feed_forward(stream_, spec.activation, layer.dense, normed,
               take_front(layer.h, {tokens, halves_of(spec.activation), spec.dense_width}),
               take_front(dense_a_, {tokens, spec.dense_width}), branch);
  add(stream_, x_mid, branch, out_TD);
}

void Transformer::forward(const Batch& batch, bool training, const std::vector<RoutingTap>& taps) {
  const int64_t tokens = batch.tokens();
  MW_CHECK(tokens <= plan_.batch.tokens() && batch.seq_len <= plan_.run.train.seq_len,
           "a batch of {} x {} tokens in a plan for {} x {}", batch.sequences, batch.seq_len, plan_.batch.sequences,
           plan_.batch.seq_len);
  embed(stream_, params_.find("embed").master, token_view(batch.ids, tokens), rows(layers_.front().x, tokens));
  size_t moe = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const TensorView out = rows(i + 1 < layers_.size() ? layers_[i + 1].x : final_x_, tokens);
    const TraceScope part(stream_.trace(), "layer", {"layer", static_cast<int64_t>(i)});
    const RoutingTap* tap = layers_[i].moe != nullptr && !taps.empty() ? &taps[moe] : nullptr;
    forward_layer(layers_[i], plan_.model.layers[i], out, batch, training, tap);
    if (layers_[i].moe != nullptr) ++moe;
  }
  rms_norm(stream_, rows(final_x_, tokens), params_.find("final_norm").master, static_cast<float>(plan_.model.norm_eps),
           rows(normed_, tokens), take_front(final_rstd_, {tokens}));
}

double Transformer::loss(const Batch& batch, float seed) {
  const TraceScope part(stream_.trace(), "head_and_loss");
  const int64_t tokens = batch.tokens(), vocab = plan_.model.vocab;
  const TensorView normed = rows(normed_, tokens), d_normed = rows(d_branch_, tokens),
                   losses = take_front(token_loss_, {tokens});
  Parameter& head = params_.find(plan_.model.tie_embeddings ? "embed" : "head");
  const TensorView labels = token_view(batch.labels, tokens);
  const int64_t chunk = logits_.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const TensorView logits_chunk = take_front(logits_, {count, vocab});
    matmul(stream_, normed.slice(begin, count), head.weights[0], logits_chunk);
    const TensorView d_chunk = seed > 0 ? take_front(d_logits_, {count, vocab}) : TensorView();
    cross_entropy(stream_, logits_chunk, labels.slice(begin, count), seed, losses.slice(begin, count), d_chunk);
    if (seed <= 0) continue;
    matmul_d_input(stream_, d_chunk, head.weights[0], d_normed.slice(begin, count));
    matmul_d_weight(stream_, d_chunk, normed.slice(begin, count), head.grad);
  }
  if (seed > 0) {
    Parameter& gain = params_.find("final_norm");
    rms_norm_backward(stream_, rows(final_x_, tokens), gain.master, take_front(final_rstd_, {tokens}), d_normed, {},
                      rows(d_x_, tokens), gain.grad);
  }
  double sum = 0;
  for (const float loss : read_values<float>(stream_, losses)) sum += static_cast<double>(loss);
  return sum;
}

std::vector<float> Transformer::logits(int64_t begin, int64_t count) {
  const int64_t vocab = plan_.model.vocab, chunk = logits_.dim(0);
  const TensorView normed = rows(normed_, plan_.batch.tokens());
  std::vector<float> out(static_cast<size_t>(count * vocab));
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t now = std::min(chunk, count - done);
    const TensorView logits_chunk = take_front(logits_, {now, vocab});
    matmul(stream_, normed.slice(begin + done, now), head_weight(), logits_chunk);
    stream_.queue().copy(out.data() + done * vocab, logits_chunk.data, static_cast<size_t>(logits_chunk.bytes()));
  }
  stream_.wait();
  return out;
}

std::vector<double> Transformer::statistics() const {
  std::vector<double> out;
  for (const int64_t i : moe_index_) {
    const LoadStatistics& s = layers_[static_cast<size_t>(i)].moe->statistics();
    out.insert(out.end(), s.counts.begin(), s.counts.end());
    out.insert(out.end(), s.prob_sums.begin(), s.prob_sums.end());
    out.push_back(s.z_sum);
    out.push_back(static_cast<double>(s.dropped));
  }
  return out;
}

AuxLosses Transformer::set_auxiliary(const std::vector<double>& summed, int64_t tokens, double seed) {
  AuxLosses losses;
  if (moe_index_.empty()) return losses;
  const double coef = plan_.run.moe.aux_loss_coef >= 0 ? plan_.run.moe.aux_loss_coef : plan_.model.aux_loss_coef;
  const double z_coef = plan_.run.moe.z_loss_coef;
  const auto layers = static_cast<double>(moe_index_.size()), total = static_cast<double>(tokens);
  const bool whole_model = plan_.run.moe.aux_scope == "model";
  const auto first_experts =
      static_cast<size_t>(plan_.model.layers[static_cast<size_t>(moe_index_.front())].moe.experts);
  std::vector<double> mean_f(first_experts), mean_p(first_experts);  // over the tokens of all layers
  size_t at = 0;
  for (const int64_t i : moe_index_) {
    const auto experts = static_cast<size_t>(plan_.model.layers[static_cast<size_t>(i)].moe.experts);
    const double* counts = &summed[at];
    const double* probs = counts + experts;
    losses.z += summed[at + 2 * experts] / total / layers;
    if (whole_model) {
      if (experts != first_experts)
        fail(Exit::config, "moe.aux_scope = \"model\" needs the same number of experts in every MoE layer",
             "use aux_scope = \"layer\"");
      for (size_t e = 0; e < experts; ++e) {
        mean_f[e] += counts[e] / total / layers;
        mean_p[e] += probs[e] / total / layers;
      }
    } else {
      const double factor =
          static_cast<double>(experts) / static_cast<double>(plan_.model.layers[static_cast<size_t>(i)].moe.top_k);
      for (size_t e = 0; e < experts; ++e) losses.aux += factor * counts[e] * probs[e] / total / total / layers;
    }
    at += 2 * experts + 2;
  }
  if (whole_model)
    for (size_t e = 0; e < first_experts; ++e) losses.aux += static_cast<double>(first_experts) * mean_f[e] * mean_p[e];
  losses.weighted = coef * losses.aux + z_coef * losses.z;

  at = 0;
  for (const int64_t i : moe_index_) {
    const MoeSpec& m = plan_.model.layers[static_cast<size_t>(i)].moe;
    const auto experts = static_cast<size_t>(m.experts);
    AuxGradient& gradient = layers_[static_cast<size_t>(i)].aux;
    gradient.d_prob.assign(coef > 0 ? experts : 0, 0.0f);
    for (size_t e = 0; e < gradient.d_prob.size(); ++e) {
      const double f = whole_model ? mean_f[e] : summed[at + e] / total / static_cast<double>(m.top_k);
      gradient.d_prob[e] = static_cast<float>(seed * coef * static_cast<double>(experts) * f / total / layers);
    }
    gradient.z_scale = static_cast<float>(seed * z_coef / total / layers);
    at += 2 * experts + 2;
  }
  return losses;
}

void Transformer::backward_feed_forward(Layer& layer, const LayerSpec& spec, int64_t tokens, TensorView d_x,
                                        Store expert_gradients) {
  const TensorView normed = rows(normed_, tokens), d_branch = rows(d_branch_, tokens),
                   x_mid = rows(layer.x_mid, tokens), rstd = take_front(layer.ffn_rstd, {tokens});
  rms_norm_apply(stream_, x_mid, layer.ffn_gain, rstd, normed);
  if (layer.moe != nullptr) {
    layer.moe->backward(stream_, normed, d_x, d_branch, layer.aux, expert_gradients);
  } else {
    feed_forward_backward(stream_, spec.activation, layer.dense, normed,
                          take_front(layer.h, {tokens, halves_of(spec.activation), spec.dense_width}),
                          take_front(dense_a_, {tokens, spec.dense_width}), d_x, d_branch);
  }
  rms_norm_backward(stream_, x_mid, layer.ffn_gain, rstd, d_branch, d_x, d_x, layer.d_ffn_gain);
}

void Transformer::backward_attention(Layer& layer, const Batch& batch, TensorView d_x) {
  const int64_t tokens = batch.tokens();
  const TensorView normed = rows(normed_, tokens), d_branch = rows(d_branch_, tokens), x = rows(layer.x, tokens),
                   rstd = take_front(layer.attn_rstd, {tokens});
  rms_norm_apply(stream_, x, layer.attn_gain, rstd, normed);
  layer.attention->backward(stream_, normed, batch.seq_len, d_x, d_branch);
  rms_norm_backward(stream_, x, layer.attn_gain, rstd, d_branch, d_x, d_x, layer.d_attn_gain);
}

void Transformer::backward(const Batch& batch, Store expert_gradients, const FeedForwardDone& done) {
  const int64_t tokens = batch.tokens();
  const TensorView d_x = rows(d_x_, tokens);
  for (size_t i = layers_.size(); i-- > 0;) {
    const TraceScope part(stream_.trace(), "layer_backward", {"layer", static_cast<int64_t>(i)});
    backward_feed_forward(layers_[i], plan_.model.layers[i], tokens, d_x, expert_gradients);
    if (done) done(static_cast<int64_t>(i));
    backward_attention(layers_[i], batch, d_x);
  }
  embed_backward(stream_, d_x, token_view(batch.ids, tokens), params_.find("embed").grad);
}

}  // namespace mw
