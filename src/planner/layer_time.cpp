#include "planner/layer_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "base/library_products.h"
#include "layout/logit_chunks.h"
#include "layout/plan.h"
#include "planner/exchange_time.h"
#include "planner/volumes.h"

namespace mw {

// What a rank computes with.
struct LayerTimeModel::Shape {
  Mesh mesh;
  Recompute recompute = Recompute::none;
  WeightPart weight_part;                             // of a schedule that splits
  TransportKind transport = TransportKind::in_place;  // of the layer
  WeightGather gather;                                // of the layer
  bool cached = false;                                // its pieces are in their slots already
  double tokens = 0, own = 0;                         // of the data-parallel rank, of this rank's shard
  double routed = 0;                                  // that its MoE blocks route
  double mean_routed = 0;                             // the same of all ranks, on average
};

namespace {

constexpr double kBackwardAttention = 2.5;  // FLOP over those of forward
constexpr double kRouterShare = 0.25;       // of the rate of dense products: fp32 accuracy, few columns
constexpr int kStatisticsBytes = 12;        // of a row's softmax in one part of the vocabulary
constexpr int kHeadSumsBytes = 8;           // of a token's norms over heads of several ranks
// Per logit, beside its products: read twice, its bf16 gradient written.
constexpr double kF32LogitBytes = 12, kBf16LogitBytes = 6;

// An exchange out and back around `compute`, in pieces: the first piece out and the last one back are waited for, the
// rest as far as compute does not hide it.
struct Overlap {
  double waited = 0, hidden = 0;
};
Overlap overlap(double out, double back, double compute, double before, double pieces) {
  const double ends = std::max(0.0, out / pieces - before) + back / pieces;
  const double between = (out + back) * (pieces - 1) / pieces, room = compute * (pieces - 1) / pieces;
  return {ends + std::max(0.0, between - room), std::min(between, room)};
}

double share_at(const std::optional<RateTable>& shares, double size) { return shares ? rate_at(*shares, size) : 1; }

// Weight gradients that can wait are a part of their own.
void put_weights(LayerTime& time, double seconds, bool can_wait) {
  (can_wait ? time.backward_weight : time.backward_input) += seconds;
}

void add(LayerTime& into, const LayerTime& from) {
  into.forward += from.forward;
  into.backward_input += from.backward_input;
  into.backward_weight += from.backward_weight;
  into.forward_exchange += from.forward_exchange;
  into.backward_exchange += from.backward_exchange;
  into.adds_squares = into.adds_squares || from.adds_squares;
}

void scale(LayerTime& time, double by) {
  for (double* part :
       {&time.forward, &time.backward_input, &time.backward_weight, &time.forward_exchange, &time.backward_exchange})
    *part *= by;
}

// Exchanges take as long as before.
LayerTime slowed(LayerTime time, double pace) {
  for (double* seconds : {&time.forward, &time.backward_input, &time.backward_weight}) *seconds *= pace;
  return time;
}

}  // namespace

LayerTimeModel::LayerTimeModel(const LayerKinds& kinds, const RunSpec& run, const PlatformProfile& profile,
                               const ExpertLoad& load, int64_t ranks)
    : kinds_(kinds),
      run_(run),
      platform_(platform_of(profile, run)),
      profile_(profile),
      transfers_(profile, ranks),
      load_(load, run.moe),
      rates_(rates_of(profile, run.train.dtype)),
      element_bytes_(static_cast<double>(size_of(run.train.dtype))),
      gradient_bytes_(static_cast<double>(size_of(run.expert_gradients))) {}

double LayerTimeModel::traffic(double bytes) const {
  return bytes > 0 ? bytes / profile_.elementwise_bytes_per_s + profile_.operator_latency_s : 0;
}

// Operands come while it computes. A GPU adds to gradients on the way, a CPU afterwards.
double LayerTimeModel::bound(double computing, double operand_bytes, double sum_bytes) const {
  const double operands = operand_bytes / profile_.stream_bytes_per_s, sums = sum_bytes / profile_.stream_bytes_per_s;
  return profile_.one_packed_form ? std::max(computing, operands + sums) : std::max(computing, operands) + sums;
}

double LayerTimeModel::product(double rows, double n, double k) const {
  const double flops = 2 * rows * n * k;
  if (flops <= 0) return 0;
  return bound(flops / rate_at(rates_.dense_products, flops), (rows * k + n * k + rows * n) * element_bytes_) +
         profile_.operator_latency_s;
}

// Adds to fp32 gradients.
double LayerTimeModel::weight_product(double rows, double n, double k) const {
  const double flops = 2 * rows * n * k;
  if (flops <= 0) return 0;
  return bound(flops / rate_at(rates_.dense_products, flops), rows * (n + k) * element_bytes_, 8 * n * k) +
         profile_.operator_latency_s;
}

double LayerTimeModel::expert_product(double rows, double experts, double n, double k) const {
  if (rows <= 0) return 0;
  const double each = 2 * rows / experts * n * k;
  const double tiled_rows = rows + experts * static_cast<double>(rates_.row_tile) / 2;
  const double rate = expert_rate(rates_, experts, each) * share_at(rates_.expert_widths, std::min(n, k));
  return bound(2 * tiled_rows * n * k / rate, (rows * (n + k) + experts * n * k) * element_bytes_) +
         profile_.operator_latency_s;
}

double LayerTimeModel::expert_weight_product(double rows, double experts, double n, double k) const {
  if (rows <= 0) return 0;
  const double each = 2 * rows / experts * n * k;
  const double rate = expert_weight_rate(rates_, experts, each) * share_at(rates_.expert_weight_widths, std::min(n, k));
  return bound(2 * rows * n * k / rate, rows * (n + k) * element_bytes_, 2 * gradient_bytes_ * experts * n * k) +
         profile_.operator_latency_s;
}

// Scores, softmax and sums of values. scores: FLOP of forward; width: of a head, the mean of keys' and values'.
LayerTime LayerTimeModel::attend(const AttentionSpec& a, double scores, double width) const {
  const bool window = a.has_window(run_.train.seq_len), documents = run_.data.document_mask;
  const auto seconds = [&](double flops, const RateTable& rates, const std::optional<RateTable>& of_widths,
                           const std::optional<double>& of_documents, double more) {
    // The share of documents counts all scores of a sequence as computed, of a window only those that it leaves.
    const double share =
        (window || documents ? of_documents.value_or(1) : 1) / (window && of_documents ? kProbedDocuments : 1) * more;
    const double rate = rate_at(rates, static_cast<double>(run_.train.seq_len)) * share_at(of_widths, width);
    return flops / (rate * share) + profile_.operator_latency_s;
  };
  const bool any_order = !run_.train.deterministic && !window && !documents;
  return {.forward = seconds(scores, rates_.attention_forward, rates_.attention_forward_widths,
                             rates_.attention_forward_documents, 1),
          .backward_input =
              seconds(kBackwardAttention * scores, rates_.attention_backward, rates_.attention_backward_widths,
                      rates_.attention_backward_documents, any_order ? rates_.attention_any_order.value_or(1) : 1)};
}

LayerTime LayerTimeModel::attention(const LayerSpec& layer, const Shape& shape) const {
  const double n = shape.tokens, t = shape.own, d = static_cast<double>(kinds_.model.width), b = element_bytes_;
  const AttentionSpec& a = layer.attention;
  const LatentSpec& l = a.latent;
  const auto heads = static_cast<double>(a.heads);
  const double q = heads * static_cast<double>(a.is_latent() ? l.nope_dim + l.rope_dim : a.head_dim),
               kv = a.is_latent() ? q : static_cast<double>(a.kv_heads * a.head_dim),
               o = a.is_latent() ? heads * static_cast<double>(l.value_dim) : q;
  const LayerTime core = attend(a, 2 * n * a.mean_keys(run_.train.seq_len) * (q + o), (q + o) / (2 * heads));
  // Products that give queries, keys and values. Of latents, too: their norms, and the columns that become heads.
  // Backward makes heads from the latents again.
  double inputs = 0, input_weights = 0, assemble = 0, rebuild = 0;
  const auto project = [&](double to, double from) {
    inputs += product(n, to, from);
    input_weights += weight_product(n, to, from);
  };
  if (a.is_latent()) {
    const auto q_rank = static_cast<double>(l.q_rank), kv_rank = static_cast<double>(l.kv_rank),
               of_heads = heads * static_cast<double>(l.nope_dim + l.value_dim);
    project(kv_rank + static_cast<double>(l.rope_dim), d);
    project(of_heads, kv_rank);
    project(q, q_rank > 0 ? q_rank : d);
    if (q_rank > 0) project(q_rank, d);
    assemble = traffic(2 * n * (kv_rank + q_rank) * b) + traffic(2 * n * (kv + o) * b);
    rebuild = product(n, of_heads, kv_rank) + (q_rank > 0 ? product(n, q, q_rank) : 0);
  } else {
    for (const double to : {q, kv, kv}) project(to, d);
  }
  const double norm = traffic(2 * t * d * b), residual = traffic(3 * t * d * b), output = product(n, d, o);
  // Kernels of GPUs rotate heads where they normalise them.
  const double rotation = a.rotates_normed_heads() && profile_.one_packed_form ? 0 : traffic(2 * n * (q + kv) * b);
  double prepare = rotation + assemble;
  if (a.qk_norm != QkNorm::none) prepare += traffic(2 * n * (q + kv) * b);
  if (a.clip_qkv > 0) prepare += traffic(2 * n * (q + 2 * kv) * b);
  // Biases are added in passes of their own.
  const double biases =
      (a.qkv_bias ? traffic(2 * n * (q + 2 * kv) * b) : 0) + (a.output_bias ? traffic(2 * n * d * b) : 0);
  const double sinks = a.sinks ? traffic(2 * n * o * b) : 0;

  const bool keeps = keeps_norms(shape.recompute);
  LayerTime time;
  time.forward = norm + inputs + biases + prepare + core.forward + sinks + output + residual;
  time.backward_input = (keeps ? 1 : 2) * norm + residual + output + weight_product(n, d, o) +
                        (keeps && !a.is_latent() ? 0 : prepare) + core.backward_input + sinks + rotation + inputs +
                        biases / 2 + rebuild + assemble + 2 * traffic(n * d * b);
  if (a.qk_norm != QkNorm::none) time.backward_input += traffic(3 * n * (q + kv) * b);
  put_weights(time, input_weights, shape.weight_part.attention);
  if (shape.recompute == Recompute::full) time.backward_input += time.forward;
  if (shape.mesh.tp > 1) {
    const double gather = transfers_.all_to_all(tp_group(shape.mesh), n * d * b);
    const double order = traffic(2 * n * d * b);
    const TokenMoves moves = attention_moves(shape.recompute);
    time.forward_exchange = moves.forward * gather;
    time.backward_exchange = moves.backward * gather;
    time.forward += 2 * order;
    time.backward_input += 3 * order;
  }
  if (norms_span_ranks(a, shape.mesh.tp)) {
    // Both directions share sums of two numbers a token, forward of squares, backward of products.
    const double statistics = static_cast<double>(shape.mesh.tp * kHeadSumsBytes) * n;
    const double share = transfers_.all_to_all(tp_group(shape.mesh), statistics);
    const double squares = traffic(n * (q + kv) * b) + traffic(statistics);
    const bool again = shape.recompute == Recompute::full;
    time.forward += squares;
    time.backward_input += traffic(2 * n * (q + kv) * b) + traffic(statistics) + (again ? squares : 0);
    time.forward_exchange += share;
    time.backward_exchange += (again ? 2 : 1) * share;
  }
  return time;
}

LayerTime LayerTimeModel::dense(const LayerSpec& layer, const Shape& shape) const {
  const double n = shape.tokens, t = shape.own, d = static_cast<double>(kinds_.model.width), b = element_bytes_;
  const auto f = static_cast<double>(layer.dense_width), c = static_cast<double>(halves_of(layer.activation));
  const double up = product(n, c * f, d), down = product(n, d, f), activate = traffic(n * (c + 1) * f * b);
  LayerTime time;
  time.forward = traffic(2 * t * d * b) + up + activate + down + traffic(3 * t * d * b);
  time.backward_input =
      traffic((keeps_norms(shape.recompute) ? 5 : 7) * t * d * b) + down + weight_product(n, d, f) + 2 * activate + up;
  if (is_recomputed(shape.recompute, "ffn.h")) time.backward_input += up;
  put_weights(time, weight_product(n, c * f, d), shape.weight_part.dense);
  if (shape.mesh.tp > 1) {
    const double gather = transfers_.all_to_all(tp_group(shape.mesh), n * d * b);
    const TokenMoves moves = feed_forward_moves(layer.feed_forward, false);
    time.forward_exchange = moves.forward * gather;
    time.backward_exchange = moves.backward * gather;
  }
  return time;
}

// The gather of the first piece begins before the attention that precedes, that of any other beside the products of the
// piece before, if there are two slots; the sums of a piece go on beside the products of the next. Collectives of the
// host hide behind nothing.
LayerTime LayerTimeModel::gathered(const LayerSpec& layer, const Shape& shape, const LayerTime& products,
                                   const LayerTime& before) const {
  const WeightGather& gather = shape.gather;
  const auto pieces = static_cast<double>(gather.pieces());
  const bool overlaps = profile_.overlaps_gradient_sums;
  auto [gather_forward, gather_backward, sum] = gather_seconds(gather, ep_group(shape.mesh), overlaps, transfers_);
  const double gathers = shape.cached ? 0 : 1;
  gather_forward *= gathers, gather_backward *= gathers;
  const auto gradients = static_cast<double>(gather.forms.gradient_bytes()),
             forward = gathers * static_cast<double>(gather.forms.forward_bytes()),
             backward = gathers * static_cast<double>(gather.forms.backward_bytes());
  const double own = std::ceil(static_cast<double>(layer.moe.experts) / static_cast<double>(shape.mesh.ep));
  LayerTime time;
  time.forward = pieces * traffic(2 * own * forward / pieces);
  time.backward_input =
      pieces * (traffic(2 * own * backward / pieces) + 2 * traffic(3 * own * gradients / (2 * pieces)));
  if (!overlaps) {
    time.forward_exchange = pieces * gather_forward;
    time.backward_exchange = pieces * (gather_backward + sum);
    return time;
  }
  const double beside = (pieces - 1) / pieces, slower = profile_.overlap_slowdown - 1;
  const auto wait = [&](double first, double attention, double rest, double compute, double& waited, double& working) {
    waited = std::max(0.0, first - attention) + std::max(0.0, rest - compute);
    working += slower * (std::min(first, attention) + std::min(rest, compute));
  };
  const double early = run_.moe.weight_slots == 1 ? 0 : pieces - 1, late = pieces - 1 - early;
  wait(gather_forward, before.forward, early * gather_forward, beside * products.forward, time.forward_exchange,
       time.forward);
  wait(gather_backward, before.backward_input, early * gather_backward + (pieces - 1) * sum,
       beside * products.backward_input, time.backward_exchange, time.backward_input);
  time.forward_exchange += late * gather_forward;
  time.backward_exchange += late * gather_backward + sum;  // the sum of the last piece
  return time;
}

ExchangeShape LayerTimeModel::exchange_of(const MoeSpec& moe, const Shape& shape) {
  const TransportTraits& traits = traits_of(shape.transport);
  const RankGroup group = ep_group(shape.mesh);
  const int64_t near = members_near(group, ranks_per_node(run_, profile_), shape.mesh.world);
  const int64_t wanted = run_.moe.row_chunks > 0 ? run_.moe.row_chunks
                         : traits.exchanges()
                             ? automatic_chunks(traits, group.size, near == group.size, profile_.row_chunks)
                             : 1;
  const int64_t links_of_group = group.size / std::gcd(group.size, transfers_.members_per_link(group));
  return {.moe = moe,
          .traits = traits,
          .group = group,
          .near = near,
          .tokens = shape.routed,
          .row_bytes = static_cast<double>(kinds_.model.width) * element_bytes_,
          // Where weights are gathered, every rank computes its own rows with all experts; where tokens are, those of
          // all ranks.
          .load = traits.follows_load()   ? load_.of(moe.experts, shape.mesh.ep, traits.equal_rows).mean
                  : traits.slices_experts ? shape.mesh.ep
                                          : shape.routed / shape.mean_routed,
          .link_load = load_.of(moe.experts, links_of_group, traits.equal_rows).mean,
          .pieces = static_cast<double>(traits.slices_experts ? std::min<int64_t>(wanted, group.size) : wanted)};
}

LayerTime LayerTimeModel::experts(const LayerSpec& layer, const Shape& shape, const LayerTime& before) {
  const MoeSpec& m = layer.moe;
  const double t = shape.routed, d = static_cast<double>(kinds_.model.width), b = element_bytes_;
  const auto f = static_cast<double>(m.width), c = static_cast<double>(halves_of(layer.activation)),
             k = static_cast<double>(m.top_k), e = static_cast<double>(m.experts),
             s = static_cast<double>(m.shared_width);
  const TransportTraits& traits = traits_of(shape.transport);
  const bool travels = traits.exchanges();
  const ExchangeShape exchange = exchange_of(m, shape);
  const double rows = exchange.load * shape.mean_routed * k, pieces = exchange.pieces,
               local = traits.follows_load() ? std::max(1.0, e / shape.mesh.ep) : e;
  // A piece of tokens has rows of all experts, so that each adds to all their gradients; other pieces have experts of
  // their own.
  const double passes = traits.slices_experts || traits.by_node ? pieces : 1;
  const auto multiply = [&](double n, double width) { return passes * expert_product(rows / passes, local, n, width); };
  const auto weight_gradient = [&](double n, double width) {
    return passes * expert_weight_product(rows / passes, local, n, width);
  };

  double route = product(t, e, d) / kRouterShare + traffic(12 * t * e) + traffic(24 * t * k);
  if (traits.slices_experts) route += traffic(24 * rows);
  const double up = multiply(c * f, d), down = multiply(d, f), activate = traffic(rows * (c + 1) * f * b),
               biases = m.bias ? traffic(2 * rows * (c * f + d) * b) : 0;
  const double shared_up = product(t, c * s, d), shared = shared_up + traffic(t * (c + 1) * s * b) + product(t, d, s) +
                                                          (m.shared_gate ? traffic(t * (2 * s + d) * b) : 0);
  const auto links = [&](ExchangePhase phase) { return travels ? link_seconds(exchange, phase, transfers_) : 0; };
  const auto copies = [&](ExchangePhase phase) { return traffic(copied_bytes(exchange, phase)); };
  const double out = links(ExchangePhase::dispatch), pack = travels ? copies(ExchangePhase::dispatch) : 0,
               combine = travels ? copies(ExchangePhase::combine) : traffic((k + 2) * t * d * b);

  LayerTime time;
  const Overlap there =
      overlap(out, links(ExchangePhase::combine), up + activate + down + biases, s > 0 ? shared : 0, pieces);
  const double slower = profile_.overlap_slowdown - 1;
  time.forward = traffic(2 * t * d * b) + route + pack + up + activate + down + biases + combine +
                 slower * there.hidden + profile_.routing_latency_s;
  if (s > 0) time.forward += shared + traffic(3 * t * d * b);
  time.forward_exchange = there.waited;

  double shared_back = 0;
  if (s > 0) shared_back = shared + product(t, s, d) + weight_product(t, d, s);
  double work =
      multiply(f, d) + traffic(rows * (2 * c + 2) * f * b) + weight_gradient(d, f) + multiply(d, c * f) + biases;
  double again = 0;
  if (is_recomputed(shape.recompute, "h")) work += up;
  if (is_recomputed(shape.recompute, "shared.h") && s > 0) again += shared_up;
  if (is_recomputed(shape.recompute, "logits")) again += product(t, e, d) / kRouterShare;
  if (is_recomputed(shape.recompute, "received") && travels) {
    again += pack;
    time.backward_exchange += out;
  }
  const Overlap back = overlap(links(ExchangePhase::gradient_dispatch), links(ExchangePhase::gradient_combine), work,
                               shared_back, pieces);
  time.backward_input = traffic((keeps_norms(shape.recompute) ? 4 : 6) * t * d * b) + pack + work + again +
                        shared_back + combine + traffic(16 * t * e) + 2 * product(t, e, d) / kRouterShare +
                        slower * back.hidden + profile_.routing_latency_s;
  // Gathered gradients are sums of several ranks; of several pieces, none stores the whole; the library adds none.
  time.adds_squares = !traits.gathers_weights && passes == 1 &&
                      !library_multiplies(run_.moe.expert_products, rows / local, halves_of(layer.activation) * m.width,
                                          kinds_.model.width);
  double weights = weight_gradient(c * f, d);
  if (s > 0) weights += weight_product(t, c * s, d);
  put_weights(time, weights, shape.weight_part.moe);
  time.backward_exchange += back.waited;
  if (traits.gathers_weights) {
    LayerTime products;
    products.forward = up + activate + down;
    products.backward_input = work + (shape.weight_part.moe ? 0 : weights);
    add(time, gathered(layer, shape, products, before));
  }
  scale(time, time_over_predicted(profile_, std::string(traits.name)));
  if (shape.mesh.ted) {  // tokens are gathered before the router, shares of the width summed
    const double gather = transfers_.all_to_all(tp_group(shape.mesh), t * d * b);
    const TokenMoves moves = feed_forward_moves(layer.feed_forward, true);
    time.forward_exchange += moves.forward * gather;
    time.backward_exchange += moves.backward * gather;
  }
  return time;
}

// The loss and its gradient, all in the backward action.
LayerTime LayerTimeModel::head(const Shape& shape) const {
  const int64_t part = vocab_part(kinds_.model, shape.mesh.tp, 0).count;
  const double n = shape.tokens, d = static_cast<double>(kinds_.model.width), v = static_cast<double>(part);
  const auto rows = static_cast<int64_t>(std::max(n, 1.0)),
             chunk_rows = logit_chunk_rows(part, rows, profile_.logit_elements);
  // Gradients in groups of chunks, each of which adds to the whole gradient of the head's weights.
  const int64_t wanted = element_bytes_ == 2 ? profile_.logit_gradient_rows.value_or(0) : 0;
  const auto group = static_cast<double>(logit_gradient_rows(chunk_rows, rows, wanted));
  const bool are_bf16 = run_.logits == DType::bf16;
  const double chunk = are_bf16 ? group : static_cast<double>(chunk_rows);
  const double chunks = std::ceil(n / chunk), groups = std::ceil(n / group);
  LayerTime time;
  time.backward_input = n / chunk * product(chunk, v, d) + 2 * n / group * product(group, v, d) +
                        groups * 4 * v * d / profile_.stream_bytes_per_s +
                        traffic((are_bf16 ? kBf16LogitBytes : kF32LogitBytes) * n * v) +
                        traffic(8 * shape.own * d * element_bytes_);
  if (shape.mesh.tp > 1) {
    // Normed rows are gathered, their gradients summed; each chunk exchanges three numbers a row.
    const double statistics = static_cast<double>(shape.mesh.tp * kStatisticsBytes) * chunk;
    time.backward_exchange = 2 * transfers_.all_to_all(tp_group(shape.mesh), n * d * element_bytes_) +
                             chunks * transfers_.all_to_all(tp_group(shape.mesh), statistics);
    time.backward_input += traffic(2 * n * d * element_bytes_);
  }
  return time;
}

LayerTime LayerTimeModel::embedding(const Shape& shape) const {
  const double elements = shape.tokens * static_cast<double>(kinds_.model.width);
  LayerTime time;
  time.forward = traffic(elements * (4 + element_bytes_));
  time.backward_input = traffic(elements * (8 + element_bytes_));
  if (shape.mesh.tp > 1) {  // what was found is summed, its gradients gathered
    const double gather = transfers_.all_to_all(tp_group(shape.mesh), elements * element_bytes_);
    time.forward_exchange = time.backward_exchange = gather;
    time.forward += traffic(2 * elements * element_bytes_);
  }
  return time;
}

LayerTime LayerTimeModel::layer_time(const LayerSpec& layer, const Shape& shape, const StagePace& pace) {
  LayerTime time = slowed(attention(layer, shape), pace.samples);
  const TransportTraits& traits = traits_of(shape.transport);
  if (layer.feed_forward == FeedForwardKind::moe)
    add(time, slowed(experts(layer, shape, time), traits.slices_experts ? pace.widths
                                                  : traits.exchanges()  ? pace.experts
                                                                        : pace.samples));
  else add(time, slowed(dense(layer, shape), pace.samples));
  return time;
}

const LayerTimes& LayerTimeModel::of(const Layout& layout, const Mesh& mesh, const StagePace& pace) {
  const int64_t sequences = most_samples(run_, layout.micro_batches, mesh.dp);
  const auto [entry, is_new] =
      known_.try_emplace({mesh.tp, mesh.ep, ep_group(mesh).stride, sequences, layout.recompute, pace});
  LayerTimes& times = entry->second;
  if (!is_new) return times;
  const int64_t tokens = sequences * run_.train.seq_len;
  RunSpec split = with_layout(run_, layout);
  split.mesh.schedule = ScheduleKind::zb_h1;
  Shape shape;
  shape.weight_part = weight_part(split);
  shape.mesh = mesh;
  shape.recompute = layout.recompute;
  shape.tokens = static_cast<double>(tokens);
  shape.own = static_cast<double>(block_of(tokens, mesh.tp, 0).count);
  shape.routed = static_cast<double>(routed_tokens(mesh, {}, tokens).count);
  shape.mean_routed = shape.routed * static_cast<double>(run_.train.global_batch / layout.micro_batches) /
                      static_cast<double>(sequences * mesh.dp);
  const std::vector<TransportKind> transports = choose_transports(kinds_.transports, mesh.ep);
  const Placements placements = start_placements(kinds_.model, run_, transports, mesh.ep);
  for (size_t kind = 0; kind < transports.size(); ++kind) {
    const LayerSpec& layer = kinds_.model.layers[kind];
    const ExpertPlacement& placement = placements.layers[kind];
    MeshCoords slowest;
    slowest.ep = placement.widest();
    const LayerSpec local = local_layer(layer, placement, mesh, slowest);
    shape.transport = transports[kind];
    shape.gather = weight_gather_of(shape.transport, local, kinds_.model.width, split, placement, platform_);
    times.kinds.push_back(layer_time(local, shape, pace));
    shape.cached = true;
    times.cached.push_back(shape.gather.pieces() > 0 ? layer_time(local, shape, pace) : times.kinds.back());
    shape.cached = false;
  }
  times.embedding = slowed(embedding(shape), pace.samples);
  times.head = slowed(head(shape), pace.samples);
  return times;
}

}  // namespace mw
