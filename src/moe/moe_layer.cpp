#include "moe/moe_layer.h"

#include <algorithm>

#include "base/library_products.h"
#include "ops/bias.h"
#include "ops/elementwise.h"
#include "ops/mixed_matmul.h"
#include "ops/row_gate.h"
#include "ops/token_layout.h"

namespace mw {
namespace {

// Products of router and gate are fp32 whatever the run's dtype.
void fp32_product(Stream& stream, TensorView x_TD, const Weight& weight, TensorView out_TN) {
  if (x_TD.dtype == DType::f32) matmul(stream, x_TD, weight, out_TN);
  else mixed_matmul(stream, x_TD, weight, out_TN);
}

// Adds to d_x and to the weight gradient.
void fp32_product_backward(Stream& stream, TensorView x_TD, const Weight& weight, TensorView d_out_TN,
                           TensorView d_x_TD, TensorView d_weight) {
  if (x_TD.dtype == DType::f32) {
    matmul_d_input(stream, d_out_TN, weight, d_x_TD, Store::accumulate);
    matmul_d_weight(stream, d_out_TN, x_TD, d_weight);
  } else {
    mixed_matmul_d_input(stream, d_out_TN, weight, d_x_TD);
    mixed_matmul_d_weight(stream, d_out_TN, x_TD, d_weight);
  }
}

// A GPU's matrix library reads rows side by side. Those of d_out, which two products read, are gathered once, into the
// place of d_x, which is written after both.
ExpertBatch gather_for_library(Stream& stream, ExpertBatch batch, const ExpertWeights& weights, ExpertProducts by) {
  const bool apart = batch.in.index != nullptr && batch.out.index == nullptr && !weights.down.empty();
  if (stream.device().kind == DeviceKind::cpu || !apart ||
      !library_multiplies(by, average_rows(batch.offsets), weights.down[0].n, weights.down[0].k))
    return batch;
  const TraceScope part(stream.trace(), "gather_for_library");
  const int64_t begin = batch.offsets.front(), count = batch.offsets.back() - begin;
  gather_rows(stream, batch.in.data, batch.in.index + begin, count, batch.out.data.slice(begin, count));
  batch.in = batch.out;
  return batch;
}

}  // namespace

ActivationRule activation_rule(const LayerSpec& layer) {
  return {layer.activation, static_cast<float>(layer.swiglu_alpha), static_cast<float>(layer.swiglu_limit)};
}

void feed_forward_hidden(Stream& stream, const FeedForwardWeights& weights, TensorView x_TD, TensorView h_TcF) {
  matmul(stream, x_TD, weights.up, flat_halves(h_TcF));
}

void feed_forward(Stream& stream, const ActivationRule& rule, const FeedForwardWeights& weights, TensorView x_TD,
                  TensorView h_TcF, TensorView a_TF, TensorView out_TD, const FeedForwardGate& gate) {
  const TraceScope part(stream.trace(), "feed_forward");
  feed_forward_hidden(stream, weights, x_TD, h_TcF);
  activate(stream, rule, h_TcF, a_TF);
  if (gate.gate_T.data != nullptr) gate_rows(stream, gate.gate_T, a_TF);
  matmul(stream, a_TF, weights.down, out_TD);
}

void feed_forward_backward(Stream& stream, const ActivationRule& rule, const FeedForwardWeights& weights,
                           TensorView h_TcF, TensorView a_TF, TensorView d_out_TD, TensorView d_x_TD, Store store,
                           const FeedForwardGate& gate) {
  const TraceScope part(stream.trace(), "feed_forward_backward");
  matmul_d_input(stream, d_out_TD, weights.down, a_TF);
  activate_backward(stream, rule, h_TcF, a_TF, gate.gate_T, h_TcF, a_TF, gate.d_gate_T);
  if (gate.gate_T.data != nullptr) gate_backward(stream, gate.gate_T, gate.d_gate_T);
  matmul_d_weight(stream, d_out_TD, a_TF, weights.d_down, store);
  matmul_d_input(stream, flat_halves(h_TcF), weights.up, d_x_TD);
}

void feed_forward_backward_up(Stream& stream, const FeedForwardWeights& weights, TensorView x_TD, TensorView d_h_TcF,
                              Store store) {
  const TraceScope part(stream.trace(), "feed_forward_up_d_weight");
  matmul_d_weight(stream, flat_halves(d_h_TcF), x_TD, weights.d_up, store);
}

CapacityRule capacity_rule(const MoeSpec& moe, int64_t domain_tokens, double factor) {
  return {factor > 0 ? expert_capacity(moe, domain_tokens, factor) : 0, domain_tokens};
}

MoeLayer::MoeLayer(const LayerSpec& layer, std::vector<int32_t> position_of_expert, MoeWeights weights, MoeSaved saved,
                   MoeScratch scratch, std::unique_ptr<Transport> transport, MoeOptions options)
    : layer_(layer),
      activation_(activation_rule(layer)),
      position_of_expert_(std::move(position_of_expert)),
      weights_(std::move(weights)),
      experts_{activation_, options.products, weights_.experts},
      saved_(std::move(saved)),
      scratch_(std::move(scratch)),
      transport_(std::move(transport)),
      options_(options) {
  const MoeSpec& m = layer_.moe;
  rule_.experts = m.experts;
  rule_.top_k = m.top_k;
  rule_.score = m.score;
  rule_.renormalise = m.renormalise;
  rule_.least_sum = static_cast<float>(m.least_sum);
  rule_.softmax_p = options_.softmax_p;
  rule_.scale = static_cast<float>(m.scale);
  rule_.groups = m.groups;
  rule_.kept_groups = m.kept_groups;
  rule_.group_best = m.group_best;
  best_rule_.experts = m.experts;
  best_rule_.top_k = m.top_k;
  best_rule_.score = m.score;
}

TensorView MoeLayer::tokens_of(TensorView saved, int64_t width) const { return take_front(saved, {tokens_, width}); }

TensorView MoeLayer::shared_hidden() const {
  return take_front(saved_.shared_h, {tokens_, halves_of(layer_.activation), layer_.moe.shared_width});
}

// Layers with wider experts may share the memory of these.
TensorView MoeLayer::hidden() {
  return take_front(saved_.h.take(rows_), {rows_, halves_of(layer_.activation), layer_.moe.width});
}

TensorView MoeLayer::activated() { return take_front(scratch_.experts.a.take(rows_), {rows_, layer_.moe.width}); }

void MoeLayer::router_logits(Stream& stream, TensorView x_TD) {
  const TraceScope scope(stream.trace(), Work::router, "router_logits");
  const TensorView logits = tokens_of(saved_.logits, layer_.moe.experts);
  fp32_product(stream, x_TD, weights_.router, logits);
  if (layer_.moe.bias) add_bias(stream, logits, weights_.router_bias);
}

FeedForwardGate MoeLayer::shared_gate() const {
  if (!layer_.moe.shared_gate) return {};
  return {take_front(saved_.shared_gate, {tokens_}), take_front(scratch_.d_shared_gate, {tokens_})};
}

void MoeLayer::choose_experts(Stream& stream, int64_t seq_len, const Choice& choice, const Choice& best) {
  const MoeSpec& m = layer_.moe;
  const TensorView logits = tokens_of(saved_.logits, m.experts), weights = tokens_of(saved_.gate_weights, m.top_k);
  piece_tokens_ = options_.sequences_apart ? seq_len : tokens_;
  pieces_.assign(tokens_ == 0 ? 0 : static_cast<size_t>((tokens_ + piece_tokens_ - 1) / piece_tokens_),
                 PieceSums(static_cast<size_t>(m.experts)));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    PieceSums& sums = pieces_[i];
    const int64_t begin = static_cast<int64_t>(i) * piece_tokens_, count = std::min(piece_tokens_, tokens_ - begin);
    const auto piece = [&](const TensorView& of) { return of.data == nullptr ? of : of.slice(begin, count); };
    if (options_.best_scores)  // its weights are overwritten by those of the choice
      route(stream, best_rule_, piece(logits), {}, best.replay, piece(best.ids_TK), piece(weights),
            {sums.counted, {}, nullptr}, piece(best.gaps_T));
    route(stream, rule_, piece(logits), weights_.bias_E, choice.replay, piece(choice.ids_TK), piece(weights),
          {sums.counts(), sums.prob_sums(), &sums.z_sum()}, piece(choice.gaps_T));
  }
}

void MoeLayer::sum_statistics() {
  statistics_ = LoadStatistics(layer_.moe.experts);
  statistics_.dropped = static_cast<double>(routed_.layout.dropped);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    PieceSums& sums = pieces_[i];
    const std::span<double> counts = sums.counts(), prob_sums = sums.prob_sums();
    if (!options_.best_scores) sums.counted.assign(counts.begin(), counts.end());
    const auto count = static_cast<double>(std::min(piece_tokens_, tokens_ - static_cast<int64_t>(i) * piece_tokens_));
    statistics_.z_sum += sums.z_sum();
    for (size_t e = 0; e < counts.size(); ++e) {
      statistics_.counts[e] += counts[e];
      statistics_.prob_sums[e] += prob_sums[e];
      statistics_.counted[e] += sums.counted[e];
      if (options_.sequences_apart) statistics_.sequence_sum += sums.counted[e] * prob_sums[e] / (count * count);
    }
  }
}

void MoeLayer::choose_experts_backward(Stream& stream, TensorView d_gate_TK, const AuxGradient& aux,
                                       TensorView d_logits_TE) {
  const MoeSpec& m = layer_.moe;
  const TensorView logits = tokens_of(saved_.logits, m.experts), ids = tokens_of(saved_.expert_choice, m.top_k);
  std::vector<float> d_prob = aux.d_prob;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * piece_tokens_, count = std::min(piece_tokens_, tokens_ - begin);
    if (options_.sequences_apart) {
      const double scale = static_cast<double>(aux.d_sequence_sum) / static_cast<double>(count * count);
      d_prob.clear();
      for (const double choices : pieces_[i].counted) d_prob.push_back(static_cast<float>(scale * choices));
    }
    route_backward(stream, rule_, logits.slice(begin, count), ids.slice(begin, count), d_gate_TK.slice(begin, count),
                   d_prob, aux.z_scale, d_logits_TE.slice(begin, count));
  }
}

// The gradient of the logits is not needed yet: its place takes the gaps.
MoeLayer::Choice MoeLayer::own_choice(TensorView ids_TK, bool wants_gaps, int64_t place) const {
  if (!wants_gaps) return {false, ids_TK, {}};
  return {false, ids_TK, take_front(scratch_.d_logits, {(place + 1) * tokens_}).slice(place * tokens_, tokens_)};
}

MoeLayer::Choice MoeLayer::replayed_choice(Stream& stream, TensorView ids_TK, const int32_t* ids) const {
  if (ids != nullptr) stream.queue().copy(ids_TK.data, ids, static_cast<size_t>(ids_TK.bytes()));
  return {ids != nullptr, ids_TK, {}};
}

// The first token's last expert becomes one that it did not choose.
void MoeLayer::spoil_choice(Stream& stream, TensorView ids_TK) const {
  const auto k = static_cast<size_t>(layer_.moe.top_k);
  std::vector<int32_t> ids = read_values<int32_t>(stream, ids_TK.slice(0, 1));
  int32_t other = 0;
  while (std::find(ids.begin(), ids.end(), other) != ids.end()) ++other;
  if (other < layer_.moe.experts) ids[k - 1] = other;
  write_values<int32_t>(stream, ids, ids_TK);
}

void MoeLayer::route_tokens(Stream& stream, TensorView x_TD, int64_t seq_len, const RoutingTap* tap) {
  const TraceScope part(stream.trace(), "route_tokens");
  const MoeSpec& m = layer_.moe;
  const TensorView ids = tokens_of(saved_.expert_choice, m.top_k), weights = tokens_of(saved_.gate_weights, m.top_k);
  // The gradient of the weights is not needed yet either.
  const TensorView best_ids(scratch_.d_gate.data, DType::i32, {tokens_, m.top_k});
  const RoutingTap at = tap != nullptr ? *tap : RoutingTap{};
  const auto tell = [&](void* to, const TensorView& from) {
    if (to != nullptr) stream.queue().read(to, from.data, static_cast<size_t>(from.bytes()));
  };
  router_logits(stream, x_TD);
  if (at.replay_ids == nullptr || at.ids != nullptr) {
    const Choice own = own_choice(ids, at.gaps != nullptr, 0), best = own_choice(best_ids, at.best_gaps != nullptr, 1);
    choose_experts(stream, seq_len, own, best);
    if (options_.choose_wrongly && tokens_ > 0 && (at.replay_ids == nullptr || options_.also_when_replayed)) {
      spoil_choice(stream, ids);
      choose_experts(stream, seq_len, {true, ids, {}}, best);
    }
    tell(at.ids, own.ids_TK), tell(at.gaps, own.gaps_T), tell(at.weights, weights);
    if (options_.best_scores) tell(at.best_ids, best.ids_TK), tell(at.best_gaps, best.gaps_T);
    if (at.replay_ids != nullptr) stream.wait();  // for the sums, which are computed anew
  }
  if (at.replay_ids != nullptr) {
    choose_experts(stream, seq_len, replayed_choice(stream, ids, at.replay_ids),
                   replayed_choice(stream, best_ids, at.replay_best_ids));
    if (at.ids == nullptr) tell(at.weights, weights);
  }

  const CapacityRule capacity = capacity_rule(
      m, options_.capacity_per_sequence ? seq_len : std::max<int64_t>(tokens_, 1), options_.capacity_factor);
  routed_ = {};
  if (capacity.capacity == 0 && tokens_ > 0) {  // the host need not wait for the layout
    for (PieceSums& sums : pieces_) routed_.choices.emplace_back(sums.counts());
    routed_.counted = stream.queue().mark();
  }
  TensorView ranking;
  if (at.ranking != nullptr) {  // after the choices, whose place it takes
    ranking = take_front(scratch_.d_gate, {tokens_, m.top_k});
    stream.queue().copy(ranking.data, at.ranking, static_cast<size_t>(ranking.bytes()));
  }
  TokenLayout& layout = routed_.layout;
  layout.tokens = tokens_;
  layout.top_k = m.top_k;
  layout.experts = m.experts;
  layout.token_ids_R = saved_.token_ids;
  layout.expert_ids_R = saved_.expert_ids;
  layout.weights_R = saved_.row_weights;
  layout.row_of_TK = tokens_of(saved_.row_of, m.top_k);
  layout.rows_per_expert_E = saved_.rows_per_expert;
  build_token_layout(stream, ids, weights, ranking, position_of_expert_, capacity, layout);
  const int32_t dropped_row = -1;
  if (options_.drop_one_row && tokens_ > 0) write_values<int32_t>(stream, {&dropped_row, 1}, layout.row_of_TK);
}

// base plus what shared experts make of x, in out or scratch; base itself where there are none.
TensorView MoeLayer::shared_forward(Stream& stream, TensorView x_TD, TensorView base_TD, TensorView out_TD) {
  const MoeSpec& m = layer_.moe;
  if (m.shared_width == 0) return base_TD;
  const TensorView branch = tokens_of(scratch_.branch, x_TD.cols());
  const FeedForwardGate gate = shared_gate();
  if (m.shared_gate) fp32_product(stream, x_TD, weights_.shared_gate, gate.gate_T.reshape({tokens_, 1}));
  feed_forward(stream, activation_, weights_.shared, x_TD, shared_hidden(),
               tokens_of(scratch_.shared_a, m.shared_width), branch, gate);
  if (base_TD.data == nullptr) return branch;
  add(stream, base_TD, branch, out_TD);
  return out_TD;
}

void MoeLayer::weights_begin(Stream& stream, Pass pass) { transport_->weights_begin(stream, pass); }

void MoeLayer::forward(Stream& stream, TensorView x_TD, TensorView base_TD, TensorView out_TD, int64_t seq_len,
                       bool training, const RoutingTap* tap) {
  const TraceScope part(stream.trace(), "moe");
  tokens_ = x_TD.dim(0);
  route_tokens(stream, x_TD, seq_len, tap);
  transport_->prepare(stream, routed_, tokens_of(saved_.gate_weights, layer_.moe.top_k), training);
  transport_->dispatch_begin(stream, Pass::forward, 0, x_TD);
  // Shared experts need no exchange: they run while the first rows travel, or while the host waits for the counts.
  const TensorView base = shared_forward(stream, x_TD, base_TD, out_TD);
  const int64_t chunks = transport_->chunks();
  for (int64_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks) transport_->dispatch_begin(stream, Pass::forward, c + 1, x_TD);
    const ExpertBatch batch = transport_->dispatch_finish(stream, Pass::forward, c, x_TD);
    rows_ = transport_->rows();
    experts_.forward(stream, batch, transport_->weights(stream, Pass::forward, c), hidden(), activated());
    transport_->combine_begin(stream, Pass::forward, c);
  }
  sum_statistics();  // dispatch_finish has waited for what they sum
  for (int64_t c = 0; c < chunks; ++c) transport_->combine_finish(stream, Pass::forward, c, {base, out_TD, {}});
}

// Expert outputs are not needed, so nothing comes back from this exchange. What needs no exchange is computed beside
// it.
void MoeLayer::dispatch_again(Stream& stream, TensorView x_TD) {
  const int64_t chunks = transport_->chunks();
  for (int64_t c = 0; c < std::min<int64_t>(chunks, 2); ++c) transport_->dispatch_begin(stream, Pass::again, c, x_TD);
  recompute_by_token(stream, x_TD);
  for (int64_t c = 0; c < chunks; ++c) {
    transport_->dispatch_finish(stream, Pass::again, c, x_TD);
    if (c + 2 < chunks) transport_->dispatch_begin(stream, Pass::again, c + 2, x_TD);
  }
}

void MoeLayer::recompute_by_token(Stream& stream, TensorView x_TD) {
  if (options_.recompute.logits) router_logits(stream, x_TD);
  if (options_.recompute.hidden && layer_.moe.shared_width > 0)
    feed_forward_hidden(stream, weights_.shared, x_TD, shared_hidden());
}

void MoeLayer::backward(Stream& stream, TensorView x_TD, TensorView d_out_TD, TensorView d_x_TD, const AuxGradient& aux,
                        GradientStore gradients) {
  const TraceScope part(stream.trace(), "moe_backward");
  const MoeSpec& m = layer_.moe;
  const TensorView h = hidden(), a = activated();
  const MoeRecompute& recompute = options_.recompute;
  if (recompute.dispatched) {
    const TraceScope again(stream.trace(), "recompute");
    dispatch_again(stream, x_TD);
  }
  transport_->dispatch_begin(stream, Pass::backward, 0, d_out_TD);
  if ((recompute.hidden || recompute.logits) && !recompute.dispatched) {
    const TraceScope again(stream.trace(), "recompute");
    recompute_by_token(stream, x_TD);
  }
  TensorView base;
  const FeedForwardGate gate = shared_gate();
  if (m.shared_width > 0) {
    base = tokens_of(scratch_.branch, x_TD.cols());
    feed_forward_backward(stream, activation_, weights_.shared, shared_hidden(),
                          tokens_of(scratch_.shared_a, m.shared_width), d_out_TD, base, gradients.store, gate);
    if (!options_.defer_up) feed_forward_backward_up(stream, weights_.shared, x_TD, shared_hidden(), gradients.store);
  }
  const int64_t chunks = transport_->chunks();
  for (int64_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks) transport_->dispatch_begin(stream, Pass::backward, c + 1, d_out_TD);
    const ExpertWeights weights = transport_->weights(stream, Pass::backward, c);
    if (recompute.hidden) {  // while gradients travel
      const TraceScope again(stream.trace(), "recompute");
      experts_.hidden(stream, transport_->forward_rows(c, x_TD), weights, h);
    }
    const ExpertBatch batch = gather_for_library(
        stream, transport_->dispatch_finish(stream, Pass::backward, c, d_out_TD), weights, options_.products);
    experts_.backward(stream, batch, weights, h, a);
    {
      const TraceScope weight(stream.trace(), "expert_down_d_weight");
      expert_gradient(stream, ExpertMatrix::down, c, batch.in, {a, nullptr}, batch.offsets, gradients);
    }
    const bool together = transport_->rows_stay() && !options_.defer_up;
    if (together) expert_up_backward(stream, c, batch, weights, x_TD, gradients);
    else experts_.up_d_input(stream, batch, weights, h);
    transport_->combine_begin(stream, Pass::backward, c);
    if (!together && !options_.defer_up) expert_up_gradient(stream, c, x_TD, gradients);
  }
  const TensorView d_gate = take_front(scratch_.d_gate, {tokens_, m.top_k}),
                   d_logits = take_front(scratch_.d_logits, {tokens_, m.experts});
  for (int64_t c = 0; c < chunks; ++c) transport_->combine_finish(stream, Pass::backward, c, {base, d_x_TD, d_gate});
  choose_experts_backward(stream, d_gate, aux, d_logits);
  {
    const TraceScope scope(stream.trace(), Work::router, "router_backward");
    fp32_product_backward(stream, x_TD, weights_.router, d_logits, d_x_TD, weights_.d_router);
    if (m.bias) bias_backward(stream, d_logits, weights_.d_router_bias);
    if (m.shared_gate)
      fp32_product_backward(stream, x_TD, weights_.shared_gate, gate.d_gate_T.reshape({tokens_, 1}), d_x_TD,
                            weights_.d_shared_gate);
  }
  transport_->gradients_finish(stream);
}

// Of the products x W^T = y of a chunk's experts.
void MoeLayer::expert_gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, const SortedRows& d_y,
                               const SortedRows& x, std::span<const int64_t> offsets, GradientStore store) {
  const GradientTarget target = transport_->gradient(stream, matrix, chunk, store);
  estmm(stream, d_y, x, offsets, target.values, target.store, options_.products);
  transport_->gradient_done(stream, matrix, chunk, store.store);
}

// From the d_h that Experts::backward left in h.
void MoeLayer::expert_up_gradient(Stream& stream, int64_t chunk, TensorView x_TD, GradientStore gradients) {
  const TraceScope part(stream.trace(), "expert_up_d_weight");
  const ExpertBatch rows = transport_->forward_rows(chunk, x_TD);
  expert_gradient(stream, ExpertMatrix::up, chunk, {flat_halves(hidden()), nullptr}, rows.in, rows.offsets, gradients);
}

// Both gradients from d_h at once.
void MoeLayer::expert_up_backward(Stream& stream, int64_t chunk, const ExpertBatch& batch, const ExpertWeights& weights,
                                  TensorView x_TD, GradientStore gradients) {
  const TraceScope part(stream.trace(), "expert_up_backward");
  const GradientTarget target = transport_->gradient(stream, ExpertMatrix::up, chunk, gradients);
  esfk(stream, {flat_halves(hidden()), nullptr}, transport_->forward_rows(chunk, x_TD).in, batch.offsets, weights.up,
       batch.out, target.values, target.store, {}, options_.products);
  transport_->gradient_done(stream, ExpertMatrix::up, chunk, gradients.store);
}

void MoeLayer::backward_up(Stream& stream, TensorView x_TD, GradientStore gradients) {
  MW_CHECK(options_.defer_up, "backward left nothing");
  if (layer_.moe.shared_width > 0)
    feed_forward_backward_up(stream, weights_.shared, x_TD, shared_hidden(), gradients.store);
  for (int64_t c = 0; c < transport_->chunks(); ++c) expert_up_gradient(stream, c, x_TD, gradients);
  transport_->gradients_finish(stream);
}

}  // namespace mw
